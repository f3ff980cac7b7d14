// SPDX-License-Identifier: Apache-2.0
// [N, d1, d2, ...] -> [N, d1 * d2 * ...]: the same bytes under another shape.
//
// Backward: dx has the bytes of dy, no pass. In place: y over x (then there is nothing to do).
#include <cstring>

#include "engine/error.h"
#include "engine/graph/layer.h"
#include "engine/parallel.h"
#include "layers/input_checks.h"

namespace layup {
namespace {

class Flatten : public Layer {
 public:
  LayerInfo infer(std::span<const TensorSpec> inputs) const override {
    const TensorSpec& x = only_input("flatten", inputs);
    LayerInfo info;
    info.output.shape = {x.shape[0], num_elements(Shape(x.shape.begin() + 1, x.shape.end()))};
    info.passes_gradient_through = true;
    for (const Pass pass : {Pass::forward, Pass::evaluate, Pass::replay})
      info.pass(pass) = {{{Role::x}}, {{Role::y}}, {{0, 0}}, 0};
    return info;
  }

  Kernel make_kernel(const KernelRequest& request) const override {
    LAYUP_ASSERT(request.pass != Pass::backward_params && request.pass != Pass::backward_data);
    const std::int64_t count = num_elements(request.inputs[0].shape);
    const int threads = request.threads;
    return [=](const KernelArgs& args) {
      const float* x = args.read(0);
      float* y = args.write(0);
      if (x == y) return;
      parallel_for(threads, count, [&](std::int64_t begin, std::int64_t end) {
        std::memcpy(y + begin, x + begin, static_cast<std::size_t>(end - begin) * sizeof(float));
      });
    };
  }

  Json params() const override { return Json::object(); }
};

std::unique_ptr<Layer> read(JsonReader& /*params*/) { return std::make_unique<Flatten>(); }

}  // namespace

LayerType flatten_layer() {
  return {"flatten",
          read,
          {{Json::object(), {{{2, 3, 5, 4}}}},
           {Json::object(), {{{3, 7}}}},
           {Json::object(), {{{4}}}}}};
}

}  // namespace layup
