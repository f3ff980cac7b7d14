// SPDX-License-Identifier: Apache-2.0
#include "layers/pooling.h"

#include <algorithm>

#include "engine/error.h"
#include "layers/input_checks.h"

namespace layup {
namespace {

// Keeps every later sum of extents far from overflow.
constexpr std::int64_t kLargestWindow = 1 << 24;

std::int64_t num_windows(std::int64_t extent, std::int64_t kernel, std::int64_t stride,
                         std::int64_t padding, bool ceil_mode) {
  const std::int64_t room = extent + 2 * padding - kernel + (ceil_mode ? stride - 1 : 0);
  if (room < 0) return 0;
  const std::int64_t count = room / stride + 1;
  const bool last_in_padding = ceil_mode && (count - 1) * stride >= extent + padding;
  return last_in_padding ? count - 1 : count;
}

std::int64_t padded_length(const Window& window, std::int64_t kernel, std::int64_t padding,
                           std::int64_t extent) {
  return std::min(window.start + kernel, extent + padding) - window.start;
}

}  // namespace

PoolParams read_pool_params(JsonReader& params) {
  PoolParams result;
  const IntRange positive{.min = 1, .max = kLargestWindow};
  const auto kernel = params.require_ints("kernel", 2, positive);
  const auto stride = params.has("stride") ? params.require_ints("stride", 2, positive) : kernel;
  const auto padding = params.get_ints("padding", 2, 0, {.min = 0, .max = kLargestWindow});
  std::copy(kernel.begin(), kernel.end(), result.kernel);
  std::copy(stride.begin(), stride.end(), result.stride);
  std::copy(padding.begin(), padding.end(), result.padding);
  result.ceil_mode = params.get_bool("ceil_mode", false);
  for (const int i : {0, 1})
    if (padding[i] > kernel[i] / 2) {
      params.fail("padding", "padding " + std::to_string(padding[i]) +
                                 " is more than half the kernel " + std::to_string(kernel[i]) +
                                 "; a window could then lie in the padding alone");
      break;
    }
  return result;
}

Json to_json(const PoolParams& params) {
  return {{"kernel", params.kernel},
          {"stride", params.stride},
          {"padding", params.padding},
          {"ceil_mode", params.ceil_mode}};
}

PoolShape infer_pool_shape(std::string_view layer, std::span<const TensorSpec> inputs,
                           const PoolParams& params) {
  const Shape& x = only_image_input(layer, inputs).shape;
  const PoolShape pool{
      checked_multiply(x[0], x[1]),
      x[2],
      x[3],
      num_windows(x[2], params.kernel[0], params.stride[0], params.padding[0], params.ceil_mode),
      num_windows(x[3], params.kernel[1], params.stride[1], params.padding[1], params.ceil_mode),
      params};
  if (pool.out_height < 1 || pool.out_width < 1)
    throw GraphError(std::string(layer) + ": the kernel [" + std::to_string(params.kernel[0]) +
                     ", " + std::to_string(params.kernel[1]) + "] does not fit into the input " +
                     to_string(x) + " with padding [" + std::to_string(params.padding[0]) + ", " +
                     std::to_string(params.padding[1]) + "]");
  return pool;
}

Shape output_shape(const Shape& x, const PoolShape& pool) {
  return {x[0], x[1], pool.out_height, pool.out_width};
}

float average_divisor(const PoolShape& pool, const Window& rows, const Window& columns,
                      bool count_include_pad) {
  const PoolParams& params = pool.params;
  if (!count_include_pad)
    return static_cast<float>((rows.end - rows.begin) * (columns.end - columns.begin));
  return static_cast<float>(
      padded_length(rows, params.kernel[0], params.padding[0], pool.height) *
      padded_length(columns, params.kernel[1], params.padding[1], pool.width));
}

}  // namespace layup
