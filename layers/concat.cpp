// SPDX-License-Identifier: Apache-2.0
// Two or more tensors behind each other along their channels.
//
//   x_i [N, C_i, d2, d3, ...] -> y [N, sum of C_i, d2, d3, ...]
//   dx_i = the channels of dy that came from x_i
//
// Moves data and computes nothing. Backward reads: dy. In place: no. Recompute: yes.
// Errors: GraphError for fewer than two inputs, or inputs that differ in another dimension than the
// second.
#include <algorithm>
#include <cstring>

#include "engine/error.h"
#include "engine/graph/layer.h"
#include "engine/parallel.h"

namespace layup {
namespace {

// All that is one copy: the channels of one input in one sample.
struct Run {
  std::int64_t begin;  // elements of a sample of y in front of it
  std::int64_t count;
};

std::vector<Run> runs_of(std::span<const TensorSpec> inputs) {
  std::vector<Run> runs;
  std::int64_t begin = 0;
  for (const TensorSpec& input : inputs) {
    const std::int64_t count = num_elements({input.shape.begin() + 1, input.shape.end()});
    runs.push_back({begin, count});
    begin += count;
  }
  return runs;
}

void check_input(std::span<const TensorSpec> inputs, std::size_t i) {
  const TensorSpec& x = inputs[i];
  if (x.dtype != DType::f32) throw GraphError("concat takes float32 inputs, found " + to_string(x));
  if (x.shape.size() < 2)
    throw GraphError("concat takes inputs [N, C, ...], found " + to_string(x.shape));
  Shape alike = x.shape;
  if (alike.size() == inputs[0].shape.size()) alike[1] = inputs[0].shape[1];
  if (alike != inputs[0].shape)
    throw GraphError("concat takes inputs that differ in channels alone, but input 0 is " +
                     to_string(inputs[0].shape) + " and input " + std::to_string(i) + " is " +
                     to_string(x.shape));
}

class Concat : public Layer {
 public:
  LayerInfo infer(std::span<const TensorSpec> inputs) const override {
    if (inputs.size() < 2)
      throw GraphError("concat takes two or more inputs, found " + std::to_string(inputs.size()));
    PassSpec forward;
    PassSpec backward;
    forward.writes = {{Role::y}};
    backward.reads = {{Role::dy}};
    LayerInfo info;
    info.output = inputs[0];
    info.output.shape.at(1) = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      check_input(inputs, i);
      info.output.shape[1] = checked_add(info.output.shape[1], inputs[i].shape[1]);
      forward.reads.push_back({Role::x, static_cast<int>(i)});
      backward.writes.push_back({Role::dx, static_cast<int>(i)});
    }
    for (const Pass pass : {Pass::forward, Pass::evaluate, Pass::replay}) info.pass(pass) = forward;
    info.pass(Pass::backward_data) = backward;
    return info;
  }

  Kernel make_kernel(const KernelRequest& request) const override {
    LAYUP_ASSERT(request.pass != Pass::backward_params);
    const std::vector<Run> runs = runs_of(request.inputs);
    const std::int64_t batch = request.inputs[0].shape[0];
    const std::int64_t whole = runs.back().begin + runs.back().count;
    const int threads = request.threads;
    const bool is_backward = request.pass == Pass::backward_data;
    return [=](const KernelArgs& args) {
      const auto num_inputs = static_cast<std::int64_t>(runs.size());
      parallel_for(threads, batch * num_inputs, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t part = begin; part < end; ++part) {
          const int i = static_cast<int>(part % num_inputs);
          const std::int64_t n = part / num_inputs;
          const Run& run = runs[static_cast<std::size_t>(i)];
          const std::int64_t apart = n * run.count;
          const std::int64_t together = n * whole + run.begin;
          const float* from = is_backward ? args.read(0) + together : args.read(i) + apart;
          float* to = is_backward ? args.write(i) + apart : args.write(0) + together;
          std::memcpy(to, from, static_cast<std::size_t>(run.count) * sizeof(float));
        }
      });
    };
  }

  Json params() const override { return Json::object(); }
};

std::unique_ptr<Layer> read(JsonReader& /*params*/) { return std::make_unique<Concat>(); }

}  // namespace

LayerType concat_layer() {
  return {"concat",
          read,
          {{Json::object(), {{{2, 3, 5, 4}}, {{2, 1, 5, 4}}}},
           {Json::object(), {{{3, 4}}, {{3, 2}}, {{3, 7}}}},
           {Json::object(), {{{1, 2, 3}}, {{1, 5, 3}}}},
           {Json::object(), {{{2, 2, 3, 3}}, {{2, 1, 3, 3}}, {{2, 3, 3, 3}}, {{2, 1, 3, 3}}}}}};
}

}  // namespace layup
