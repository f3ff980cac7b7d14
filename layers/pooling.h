// SPDX-License-Identifier: Apache-2.0
// Geometry that max_pool2d and avg_pool2d share.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/json_reader.h"
#include "engine/tensor.h"

namespace layup {

// As written in a network file; [0] is height, [1] is width.
struct PoolParams {
  std::int64_t kernel[2] = {1, 1};
  std::int64_t stride[2] = {1, 1};
  std::int64_t padding[2] = {0, 0};
  bool ceil_mode = false;
};

// "kernel" (required), "stride" (default: the kernel), "padding" (default 0, at most half the
// kernel, so that every window holds an element), "ceil_mode" (default false).
PoolParams read_pool_params(JsonReader& params);
Json to_json(const PoolParams& params);

// N*C planes of H x W, pooled to P x Q by windows of R x S.
struct PoolShape {
  std::int64_t planes = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t out_height = 0;
  std::int64_t out_width = 0;
  PoolParams params;

  std::int64_t area() const { return height * width; }
  std::int64_t out_area() const { return out_height * out_width; }
};

// P = floor((H + 2*padding - R) / stride) + 1; with ceil_mode the quotient is rounded up, but a
// last window that would start in the padding behind the image is dropped (as in PyTorch).
// Throws GraphError when x is not [N, C, H, W] or when no window fits.
PoolShape infer_pool_shape(std::string_view layer, std::span<const TensorSpec> inputs,
                           const PoolParams& params);
Shape output_shape(const Shape& x, const PoolShape& pool);

// Where a window lies along one dimension.
struct Window {
  std::int64_t start;  // may be negative: in the padding
  std::int64_t begin;  // the part inside the image is [begin, end)
  std::int64_t end;
};

inline Window window_at(std::int64_t position, std::int64_t kernel, std::int64_t stride,
                        std::int64_t padding, std::int64_t extent) {
  const std::int64_t start = position * stride - padding;
  const std::int64_t end = start + kernel;
  return {start, start > 0 ? start : 0, end < extent ? end : extent};
}
inline Window row_window(const PoolShape& pool, std::int64_t p) {
  return window_at(p, pool.params.kernel[0], pool.params.stride[0], pool.params.padding[0],
                   pool.height);
}
inline Window column_window(const PoolShape& pool, std::int64_t q) {
  return window_at(q, pool.params.kernel[1], pool.params.stride[1], pool.params.padding[1],
                   pool.width);
}

// By what avg_pool2d divides the sum of a window (its contract says which elements count).
float average_divisor(const PoolShape& pool, const Window& rows, const Window& columns,
                      bool count_include_pad);

}  // namespace layup
