// SPDX-License-Identifier: Apache-2.0
// Rectified linear unit.
//
//   y = x where x > 0, else 0          NaN stays NaN, so that divergence is seen
//   dx = dy where y > 0, else 0        the derivative at 0 is 0, as in PyTorch
//
// Backward reads: y. In place: y over x, dx over dy. Recompute: yes.
#include "engine/error.h"
#include "engine/graph/layer.h"
#include "engine/parallel.h"
#include "layers/input_checks.h"

namespace layup {
namespace {

class Relu : public Layer {
 public:
  LayerInfo infer(std::span<const TensorSpec> inputs) const override {
    LayerInfo info;
    info.output = only_input("relu", inputs);
    const auto count = static_cast<double>(num_elements(info.output.shape));
    for (const Pass pass : {Pass::forward, Pass::evaluate, Pass::replay})
      info.pass(pass) = {{{Role::x}}, {{Role::y}}, {{0, 0}}, count};
    info.pass(Pass::backward_data) = {{{Role::y}, {Role::dy}}, {{Role::dx}}, {{1, 0}}, count};
    return info;
  }

  Kernel make_kernel(const KernelRequest& request) const override {
    LAYUP_ASSERT(request.pass != Pass::backward_params);
    const std::int64_t count = num_elements(request.inputs[0].shape);
    const int threads = request.threads;
    if (request.pass == Pass::backward_data)
      return [=](const KernelArgs& args) { backward(threads, count, args); };
    return [=](const KernelArgs& args) { forward(threads, count, args); };
  }

  Json params() const override { return Json::object(); }

 private:
  static void forward(int threads, std::int64_t count, const KernelArgs& args) {
    const float* x = args.read(0);
    float* y = args.write(0);
    parallel_for(threads, count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) y[i] = x[i] <= 0 ? 0 : x[i];
    });
  }

  static void backward(int threads, std::int64_t count, const KernelArgs& args) {
    const float* y = args.read(0);
    const float* dy = args.read(1);
    float* dx = args.write(0);
    parallel_for(threads, count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) dx[i] = y[i] <= 0 ? 0 : dy[i];
    });
  }
};

std::unique_ptr<Layer> read(JsonReader& /*params*/) { return std::make_unique<Relu>(); }

}  // namespace

LayerType relu_layer() {
  return {"relu",
          read,
          {{Json::object(), {{{2, 3, 5, 4}}}},
           {Json::object(), {{{3, 7}}}},
           {Json::object(), {{{1, 1, 1, 1}}}}}};
}

}  // namespace layup
