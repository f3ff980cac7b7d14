// SPDX-License-Identifier: Apache-2.0
// Largest value of each window.
//
//   x [N, C, H, W] -> y [N, C, P, Q];  saved0: position r * S + s of the maximum in its window,
//   u8 when R * S <= 255, else i32, of the shape of y
//   dx = sum of dy over the windows whose maximum this element was
//
// Semantics: PyTorch's. Padding never wins; the first of equal values wins; a NaN wins over every
// number (and a later NaN over an earlier one). Geometry: layers/pooling.h.
// Backward reads: saved0, dy. In place: no. Recompute: yes; replay writes y only.
// Errors: ConfigError if the padding is over half the kernel; GraphError if no window fits.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/error.h"
#include "engine/graph/layer.h"
#include "engine/parallel.h"
#include "layers/pooling.h"

namespace layup {
namespace {

constexpr std::int64_t kMostPositionsInByte = 255;

// The outputs of one row whose windows have their column s inside the image: [begin, end). Output q
// has it at start + q * stride.
Window outputs_with_column(const PoolShape& pool, std::int64_t s) {
  const std::int64_t offset = s - pool.params.padding[1];
  const std::int64_t stride = pool.params.stride[1];
  const std::int64_t begin = offset < 0 ? (-offset + stride - 1) / stride : 0;
  const std::int64_t last = pool.width - 1 - offset;
  return {offset, begin, last < 0 ? 0 : std::min(last / stride + 1, pool.out_width)};
}

// Neighbouring windows of one row, found together: 32-bit locals let the compiler vectorise the
// comparisons.
constexpr std::int64_t kMostTogether = 64;

struct Maxima {
  float value[kMostTogether];
  std::int32_t position[kMostTogether];  // r * S + s
};

// The maxima of outputs [first, first + count) of row p.
void find_maxima(const PoolShape& pool, const float* plane, std::int64_t p, std::int64_t first,
                 std::int64_t count, Maxima& best) {
  const Window rows = row_window(pool, p);
  const std::int64_t kernel_width = pool.params.kernel[1];
  const std::int64_t stride = pool.params.stride[1];
  for (std::int64_t i = 0; i < count; ++i) {  // the first element, where nothing is larger
    const Window columns = column_window(pool, first + i);
    best.value[i] = -std::numeric_limits<float>::infinity();
    best.position[i] = static_cast<std::int32_t>((rows.begin - rows.start) * kernel_width +
                                                 columns.begin - columns.start);
  }
  for (std::int64_t h = rows.begin; h < rows.end; ++h)
    for (std::int64_t s = 0; s < kernel_width; ++s) {
      const Window outputs = outputs_with_column(pool, s);
      const float* x = plane + h * pool.width + outputs.start + first * stride;
      const auto position = static_cast<std::int32_t>((h - rows.start) * kernel_width + s);
      const std::int64_t end = std::min(outputs.end - first, count);
      for (std::int64_t i = std::max<std::int64_t>(outputs.begin - first, 0); i < end; ++i) {
        const float value = x[i * stride];
        const bool wins =
            static_cast<int>(value > best.value[i]) | static_cast<int>(std::isnan(value));
        best.value[i] = wins ? value : best.value[i];
        best.position[i] = wins ? position : best.position[i];
      }
    }
}

// One row of y, and its positions unless they are null.
template <typename Position>
void pool_row(const PoolShape& pool, const float* plane, std::int64_t p, float* y,
              Position* positions) {
  Maxima best;
  for (std::int64_t first = 0; first < pool.out_width; first += kMostTogether) {
    const std::int64_t count = std::min(kMostTogether, pool.out_width - first);
    find_maxima(pool, plane, p, first, count, best);
    std::copy(best.value, best.value + count, y + first);
    if (positions == nullptr) continue;
    for (std::int64_t i = 0; i < count; ++i)
      positions[first + i] = static_cast<Position>(best.position[i]);
  }
}

// evaluate and replay write y alone: keep_positions is false.
template <typename Position>
Kernel forward_kernel(const PoolShape& pool, int threads, bool keep_positions) {
  return [=](const KernelArgs& args) {
    const float* x = args.read(0);
    float* y = args.write(0);
    Position* positions = keep_positions ? args.write<Position>(1) : nullptr;
    parallel_for(threads, pool.planes * pool.out_height, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        pool_row(pool, x + row / pool.out_height * pool.area(), row % pool.out_height,
                 y + row * pool.out_width,
                 keep_positions ? positions + row * pool.out_width : nullptr);
    });
  };
}

template <typename Position>
void backward_plane(const PoolShape& pool, const Position* positions, const float* dy, float* dx) {
  std::fill(dx, dx + pool.area(), 0.0F);
  for (std::int64_t p = 0; p < pool.out_height; ++p)
    for (std::int64_t q = 0; q < pool.out_width; ++q) {
      const std::int64_t out = p * pool.out_width + q;
      const auto position = static_cast<std::int64_t>(positions[out]);
      const std::int64_t h = row_window(pool, p).start + position / pool.params.kernel[1];
      const std::int64_t w = column_window(pool, q).start + position % pool.params.kernel[1];
      dx[h * pool.width + w] += dy[out];
    }
}

template <typename Position>
Kernel backward_kernel(const PoolShape& pool, int threads) {
  return [=](const KernelArgs& args) {
    const Position* positions = args.read<Position>(0);
    const float* dy = args.read(1);
    float* dx = args.write(0);
    parallel_for(threads, pool.planes, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t plane = begin; plane < end; ++plane)
        backward_plane(pool, positions + plane * pool.out_area(), dy + plane * pool.out_area(),
                       dx + plane * pool.area());
    });
  };
}

class MaxPool2d : public Layer {
 public:
  explicit MaxPool2d(const PoolParams& params) : params_(params) {}

  LayerInfo infer(std::span<const TensorSpec> inputs) const override {
    const PoolShape pool = infer_pool_shape("max_pool2d", inputs, params_);
    LayerInfo info;
    info.output.shape = output_shape(inputs[0].shape, pool);
    info.saved = {{info.output.shape, byte_positions() ? DType::u8 : DType::i32}};
    const auto outputs = static_cast<double>(num_elements(info.output.shape));
    const double flops = outputs * static_cast<double>(window_elements());
    info.pass(Pass::forward) = {{{Role::x}}, {{Role::y}, {Role::saved}}, {}, flops};
    info.pass(Pass::evaluate) = {{{Role::x}}, {{Role::y}}, {}, flops};
    info.pass(Pass::replay) = info.pass(Pass::evaluate);
    info.pass(Pass::backward_data) = {{{Role::saved}, {Role::dy}}, {{Role::dx}}, {}, outputs};
    return info;
  }

  Kernel make_kernel(const KernelRequest& request) const override {
    LAYUP_ASSERT(request.pass != Pass::backward_params);
    const PoolShape pool = infer_pool_shape("max_pool2d", request.inputs, params_);
    const int threads = request.threads;
    if (request.pass == Pass::backward_data)
      return byte_positions() ? backward_kernel<std::uint8_t>(pool, threads)
                              : backward_kernel<std::int32_t>(pool, threads);
    const bool keep_positions = request.pass == Pass::forward;
    return byte_positions() ? forward_kernel<std::uint8_t>(pool, threads, keep_positions)
                            : forward_kernel<std::int32_t>(pool, threads, keep_positions);
  }

  Json params() const override { return to_json(params_); }

 private:
  std::int64_t window_elements() const { return params_.kernel[0] * params_.kernel[1]; }
  bool byte_positions() const { return window_elements() <= kMostPositionsInByte; }

  PoolParams params_;
};

std::unique_ptr<Layer> read(JsonReader& params) {
  const PoolParams pool = read_pool_params(params);
  if (pool.kernel[0] * pool.kernel[1] > std::numeric_limits<std::int32_t>::max())
    params.fail("kernel", "the window has more than 2147483647 elements");
  return std::make_unique<MaxPool2d>(pool);
}

}  // namespace

LayerType max_pool2d_layer() {
  return {"max_pool2d",
          read,
          {{{{"kernel", 2}}, {{{2, 3, 6, 7}}}},
           {{{"kernel", 3}, {"stride", 2}, {"padding", 1}}, {{{2, 2, 7, 6}}}},
           {{{"kernel", 3}, {"stride", 2}, {"ceil_mode", true}}, {{{1, 3, 8, 8}}}},
           {{{"kernel", {2, 3}}, {"stride", {1, 2}}, {"padding", {1, 0}}, {"ceil_mode", true}},
            {{{1, 2, 5, 6}}}},
           {{{"kernel", 2}, {"stride", 2}, {"padding", 1}, {"ceil_mode", true}}, {{{1, 1, 5, 5}}}},
           {{{"kernel", {1, 2}}, {"stride", 1}, {"padding", {0, 1}}}, {{{1, 1, 1, 70}}}},
           {{{"kernel", 16}, {"stride", 1}}, {{{1, 1, 17, 16}}}}}};
}

}  // namespace layup
