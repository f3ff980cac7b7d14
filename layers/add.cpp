// SPDX-License-Identifier: Apache-2.0
// Sum of two or more tensors of one shape (no broadcasting).
//
//   y = (x0 + x1) + x2 + ...           in the order of the inputs
//   dx of every input = dy             the very bytes: there is no backward pass
//
// In place: y over any one input. Recompute: yes.
// Errors: GraphError for fewer than two inputs or different shapes.
#include "engine/error.h"
#include "engine/graph/layer.h"
#include "engine/parallel.h"

namespace layup {
namespace {

class Add : public Layer {
 public:
  LayerInfo infer(std::span<const TensorSpec> inputs) const override {
    if (inputs.size() < 2)
      throw GraphError("add takes two or more inputs, found " + std::to_string(inputs.size()));
    PassSpec pass;
    pass.writes = {{Role::y}};
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].dtype != DType::f32)
        throw GraphError("add takes float32 inputs, found " + to_string(inputs[i]));
      if (inputs[i] != inputs[0])
        throw GraphError("add takes inputs of one shape, but input 0 is " +
                         to_string(inputs[0].shape) + " and input " + std::to_string(i) + " is " +
                         to_string(inputs[i].shape));
      const int position = static_cast<int>(i);
      pass.reads.push_back({Role::x, position});
      pass.in_place.push_back({position, 0});
    }
    pass.flops =
        static_cast<double>(num_elements(inputs[0].shape)) * static_cast<double>(inputs.size() - 1);
    LayerInfo info;
    info.output = inputs[0];
    info.passes_gradient_through = true;
    for (const Pass p : {Pass::forward, Pass::evaluate, Pass::replay}) info.pass(p) = pass;
    return info;
  }

  Kernel make_kernel(const KernelRequest& request) const override {
    LAYUP_ASSERT(request.pass != Pass::backward_params && request.pass != Pass::backward_data);
    const std::int64_t count = num_elements(request.inputs[0].shape);
    const int threads = request.threads;
    const int num_inputs = static_cast<int>(request.inputs.size());
    return [=](const KernelArgs& args) {
      parallel_for(threads, count, [&](std::int64_t begin, std::int64_t end) {
        sum(args, num_inputs, begin, end);
      });
    };
  }

  Json params() const override { return Json::object(); }

 private:
  static void sum(const KernelArgs& args, int num_inputs, std::int64_t begin, std::int64_t end) {
    const float* x0 = args.read(0);
    const float* x1 = args.read(1);
    float* y = args.write(0);
    if (num_inputs == 2) {  // the usual case, a loop that the compiler vectorises
      for (std::int64_t i = begin; i < end; ++i) y[i] = x0[i] + x1[i];
      return;
    }
    // One element at a time through all inputs, since y may lie over any of them.
    for (std::int64_t i = begin; i < end; ++i) {
      float total = x0[i] + x1[i];
      for (int k = 2; k < num_inputs; ++k) total += args.read(k)[i];
      y[i] = total;
    }
  }
};

std::unique_ptr<Layer> read(JsonReader& /*params*/) { return std::make_unique<Add>(); }

}  // namespace

LayerType add_layer() {
  return {"add",
          read,
          {{Json::object(), {{{2, 3, 5, 4}}, {{2, 3, 5, 4}}}},
           {Json::object(), {{{3, 7}}, {{3, 7}}, {{3, 7}}}},
           {Json::object(), {{{1, 2, 3, 3}}, {{1, 2, 3, 3}}, {{1, 2, 3, 3}}, {{1, 2, 3, 3}}}}}};
}

}  // namespace layup
