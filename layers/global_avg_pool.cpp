// SPDX-License-Identifier: Apache-2.0
// Mean of each plane: PyTorch's adaptive_avg_pool2d(1).
//
//   x [N, C, H, W] -> y [N, C, 1, 1];  y = sum(x) / (H * W),  dx = dy / (H * W)
//   sums in double, rows first
//
// Backward reads: dy. In place: no. Recompute: yes.
#include "engine/error.h"
#include "engine/graph/layer.h"
#include "engine/parallel.h"
#include "layers/input_checks.h"

namespace layup {
namespace {

class GlobalAvgPool : public Layer {
 public:
  LayerInfo infer(std::span<const TensorSpec> inputs) const override {
    const TensorSpec& x = only_image_input("global_avg_pool", inputs);
    const auto count = static_cast<double>(num_elements(x.shape));
    LayerInfo info;
    info.output.shape = {x.shape[0], x.shape[1], 1, 1};
    for (const Pass pass : {Pass::forward, Pass::evaluate, Pass::replay})
      info.pass(pass) = {{{Role::x}}, {{Role::y}}, {}, count};
    info.pass(Pass::backward_data) = {{{Role::dy}}, {{Role::dx}}, {}, count};
    return info;
  }

  Kernel make_kernel(const KernelRequest& request) const override {
    LAYUP_ASSERT(request.pass != Pass::backward_params);
    const Shape& x = request.inputs[0].shape;
    const std::int64_t num_planes = x[0] * x[1];
    const std::int64_t area = x[2] * x[3];
    const int threads = request.threads;
    if (request.pass == Pass::backward_data)
      return [=](const KernelArgs& args) { backward(threads, num_planes, area, args); };
    return [=](const KernelArgs& args) { forward(threads, num_planes, area, args); };
  }

  Json params() const override { return Json::object(); }

 private:
  static void forward(int threads, std::int64_t num_planes, std::int64_t area,
                      const KernelArgs& args) {
    const float* x = args.read(0);
    float* y = args.write(0);
    parallel_for(threads, num_planes, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t plane = begin; plane < end; ++plane) {
        double sum = 0;
        for (std::int64_t i = 0; i < area; ++i) sum += x[plane * area + i];
        y[plane] = static_cast<float>(sum / static_cast<double>(area));
      }
    });
  }

  static void backward(int threads, std::int64_t num_planes, std::int64_t area,
                       const KernelArgs& args) {
    const float* dy = args.read(0);
    float* dx = args.write(0);
    parallel_for(threads, num_planes, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t plane = begin; plane < end; ++plane) {
        const float share = dy[plane] / static_cast<float>(area);
        for (std::int64_t i = 0; i < area; ++i) dx[plane * area + i] = share;
      }
    });
  }
};

std::unique_ptr<Layer> read(JsonReader& /*params*/) { return std::make_unique<GlobalAvgPool>(); }

}  // namespace

LayerType global_avg_pool_layer() {
  return {"global_avg_pool",
          read,
          {{Json::object(), {{{2, 3, 5, 4}}}}, {Json::object(), {{{3, 2, 1, 1}}}}}};
}

}  // namespace layup
