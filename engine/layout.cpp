// SPDX-License-Identifier: Apache-2.0
#include "engine/layout.h"

#include <algorithm>
#include <functional>

#include "engine/bf16.h"
#include "engine/error.h"

namespace layup {
namespace {

std::int64_t block_of(const Layout& layout, int dimension) {
  std::int64_t size = 1;
  for (const Layout::Block& block : layout.blocks)
    if (block.dimension == dimension) size *= block.size;
  return size;
}

// What each index of a dimension adds to the position of an element.
std::vector<std::vector<std::int64_t>> offsets_of(const Layout& layout) {
  std::vector<std::vector<std::int64_t>> offsets;
  for (int dimension = 0; dimension < static_cast<int>(layout.dims.size()); ++dimension) {
    const auto at = static_cast<std::size_t>(dimension);
    const std::int64_t whole = block_of(layout, dimension);
    std::vector<std::int64_t>& list = offsets.emplace_back();
    for (std::int64_t i = 0; i < layout.dims[at]; ++i) {
      std::int64_t offset = i / whole * layout.strides[at];
      std::int64_t rest = i % whole;
      std::int64_t stride = 1;
      for (std::size_t b = layout.blocks.size(); b-- > 0;) {
        const Layout::Block& block = layout.blocks[b];
        if (block.dimension == dimension) {
          offset += rest % block.size * stride;
          rest /= block.size;
        }
        stride *= block.size;
      }
      list.push_back(offset);
    }
  }
  return offsets;
}

// Calls visit(position in the logical order, position in the layout) for every element.
template <typename Visit>
void for_each(const Layout& layout, const Shape& shape, const Visit& visit) {
  if (layout.is_row_major()) {
    const std::int64_t count = num_elements(shape);
    for (std::int64_t i = 0; i < count; ++i) visit(i, i);
    return;
  }
  const auto offsets = offsets_of(layout);
  const std::size_t rank = layout.dims.size();
  std::vector<std::size_t> at(rank, 0);
  const std::int64_t rows = num_elements(layout.dims) / layout.dims.back();
  std::int64_t position = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t base = 0;
    for (std::size_t d = 0; d + 1 < rank; ++d) base += offsets[d][at[d]];
    for (const std::int64_t offset : offsets.back()) visit(position++, base + offset);
    for (std::size_t d = rank - 1; d-- > 0;) {
      if (++at[d] < offsets[d].size()) break;
      at[d] = 0;
    }
  }
}

template <typename T, typename Convert>
void place(const Layout& layout, const Shape& shape, const float* from, T* to,
           const Convert& convert) {
  std::fill_n(to, num_elements(layout, shape), T{});
  for_each(layout, shape, [&](std::int64_t logical, std::int64_t position) {
    to[position] = convert(from[logical]);
  });
}

}  // namespace

Layout blocked_layout(const Shape& dims, const std::vector<int>& order,
                      std::vector<Layout::Block> blocks) {
  LAYUP_ASSERT(order.size() == dims.size());
  Layout layout{dims, Shape(dims.size(), 0), std::move(blocks)};
  std::int64_t stride = 1;
  for (const Layout::Block& block : layout.blocks) stride *= block.size;
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto dimension = static_cast<std::size_t>(order[i]);
    const std::int64_t whole = block_of(layout, order[i]);
    layout.strides[dimension] = stride;
    stride = checked_multiply(stride, (dims[dimension] + whole - 1) / whole);
  }
  return layout;
}

Layout blocked_channels(const Shape& dims, std::int64_t block) {
  return blocked_layout(dims, {0, 1, 2, 3}, {{1, block}});
}

std::int64_t num_elements(const Layout& layout, const Shape& shape) {
  if (layout.is_row_major()) return num_elements(shape);
  std::int64_t count = 1;
  for (std::size_t d = 0; d < layout.dims.size(); ++d)
    count =
        checked_multiply(count, round_up(layout.dims[d], block_of(layout, static_cast<int>(d))));
  return count;
}

std::int64_t element_bytes(const Layout& layout, DType type) {
  LAYUP_ASSERT(layout.element == Element::own || type == DType::f32);
  return layout.element == Element::bf16 ? static_cast<std::int64_t>(sizeof(Bf16))
                                         : size_bytes(type);
}

void from_plain(const Layout& layout, const Shape& shape, const float* from, void* to) {
  if (layout.element == Element::bf16)
    place(layout, shape, from, static_cast<Bf16*>(to), to_bf16);
  else
    place(layout, shape, from, static_cast<float*>(to), std::identity());
}

void to_plain(const Layout& layout, const Shape& shape, const void* from, float* to) {
  const auto fetch = [&](const auto* placed, const auto& convert) {
    for_each(layout, shape, [&](std::int64_t logical, std::int64_t position) {
      to[logical] = convert(placed[position]);
    });
  };
  if (layout.element == Element::bf16)
    fetch(static_cast<const Bf16*>(from), to_float);
  else
    fetch(static_cast<const float*>(from), std::identity());
}

std::string to_string(const Layout& layout) {
  if (layout.is_plain()) return "plain";
  std::string text = layout.is_row_major() ? "row by row" : to_string(layout.dims) + " by";
  for (const std::int64_t stride : layout.strides) text += " " + std::to_string(stride);
  if (!layout.blocks.empty()) text += " in blocks of";
  for (const Layout::Block& block : layout.blocks)
    text += " " + std::to_string(block.size) + " d" + std::to_string(block.dimension);
  if (layout.element == Element::bf16) text += " as bf16";
  return text;
}

}  // namespace layup
