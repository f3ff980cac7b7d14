// SPDX-License-Identifier: Apache-2.0
// Mean of each window.
//
//   x [N, C, H, W] -> y [N, C, P, Q];  y = sum(window) / divisor,  dx = sum of dy / divisor over
//   the windows that hold the element; sums in double, rows first
//   divisor: with count_include_pad (the default) the elements of the window in the padded image,
//   but not what overhangs it (ceil_mode); without, the elements in the image
//
// Semantics: PyTorch's. Geometry: layers/pooling.h.
// Backward reads: dy. In place: no. Recompute: yes.
// Errors: ConfigError if the padding is over half the kernel; GraphError if no window fits.
#include <algorithm>

#include "engine/error.h"
#include "engine/graph/layer.h"
#include "engine/parallel.h"
#include "layers/pooling.h"

namespace layup {
namespace {

void forward_plane(const PoolShape& pool, bool count_include_pad, const float* x, float* y) {
  for (std::int64_t p = 0; p < pool.out_height; ++p)
    for (std::int64_t q = 0; q < pool.out_width; ++q) {
      const Window rows = row_window(pool, p);
      const Window columns = column_window(pool, q);
      double sum = 0;
      for (std::int64_t h = rows.begin; h < rows.end; ++h)
        for (std::int64_t w = columns.begin; w < columns.end; ++w) sum += x[h * pool.width + w];
      y[p * pool.out_width + q] =
          static_cast<float>(sum / average_divisor(pool, rows, columns, count_include_pad));
    }
}

void backward_plane(const PoolShape& pool, bool count_include_pad, const float* dy, float* dx) {
  std::fill(dx, dx + pool.area(), 0.0F);
  for (std::int64_t p = 0; p < pool.out_height; ++p)
    for (std::int64_t q = 0; q < pool.out_width; ++q) {
      const Window rows = row_window(pool, p);
      const Window columns = column_window(pool, q);
      const float share =
          dy[p * pool.out_width + q] / average_divisor(pool, rows, columns, count_include_pad);
      for (std::int64_t h = rows.begin; h < rows.end; ++h)
        for (std::int64_t w = columns.begin; w < columns.end; ++w) dx[h * pool.width + w] += share;
    }
}

class AvgPool2d : public Layer {
 public:
  AvgPool2d(const PoolParams& params, bool count_include_pad)
      : params_(params), count_include_pad_(count_include_pad) {}

  LayerInfo infer(std::span<const TensorSpec> inputs) const override {
    const PoolShape pool = infer_pool_shape("avg_pool2d", inputs, params_);
    LayerInfo info;
    info.output.shape = output_shape(inputs[0].shape, pool);
    const double flops = static_cast<double>(num_elements(info.output.shape)) *
                         static_cast<double>(params_.kernel[0] * params_.kernel[1]);
    for (const Pass pass : {Pass::forward, Pass::evaluate, Pass::replay})
      info.pass(pass) = {{{Role::x}}, {{Role::y}}, {}, flops};
    info.pass(Pass::backward_data) = {{{Role::dy}}, {{Role::dx}}, {}, flops};
    return info;
  }

  Kernel make_kernel(const KernelRequest& request) const override {
    LAYUP_ASSERT(request.pass != Pass::backward_params);
    const PoolShape pool = infer_pool_shape("avg_pool2d", request.inputs, params_);
    const int threads = request.threads;
    const bool include_pad = count_include_pad_;
    const bool backward = request.pass == Pass::backward_data;
    return [=](const KernelArgs& args) {
      const float* from = args.read(0);
      float* to = args.write(0);
      parallel_for(threads, pool.planes, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          if (backward)
            backward_plane(pool, include_pad, from + i * pool.out_area(), to + i * pool.area());
          else
            forward_plane(pool, include_pad, from + i * pool.area(), to + i * pool.out_area());
        }
      });
    };
  }

  Json params() const override {
    Json json = to_json(params_);
    json["count_include_pad"] = count_include_pad_;
    return json;
  }

 private:
  PoolParams params_;
  bool count_include_pad_;
};

std::unique_ptr<Layer> read(JsonReader& params) {
  const PoolParams pool = read_pool_params(params);
  return std::make_unique<AvgPool2d>(pool, params.get_bool("count_include_pad", true));
}

}  // namespace

LayerType avg_pool2d_layer() {
  const Json overhang = {{"kernel", 3}, {"stride", 2}, {"padding", 1}, {"ceil_mode", true}};
  Json exclude = overhang;
  exclude["count_include_pad"] = false;
  return {"avg_pool2d",
          read,
          {{{{"kernel", 2}}, {{{2, 3, 6, 7}}}},
           {{{"kernel", 3}, {"stride", 2}, {"padding", 1}}, {{{2, 2, 7, 6}}}},
           {overhang, {{{1, 2, 6, 5}}}},
           {exclude, {{{1, 2, 6, 5}}}},
           {{{"kernel", {2, 3}}, {"stride", {1, 2}}, {"padding", {1, 0}}}, {{{1, 2, 5, 6}}}}}};
}

}  // namespace layup
