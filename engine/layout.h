// SPDX-License-Identifier: Apache-2.0
// Where the elements of a tensor lie in memory, and as what.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/shape.h"
#include "engine/tensor.h"

namespace layup {

// Of the tensor's own type, or a float32 tensor that lies in memory as bfloat16 (engine/bf16.h).
enum class Element : std::uint8_t { own, bf16 };

// Plain (the default): row by row, without gaps, in the tensor's own type. Blocked: inner blocks of
// some dimensions lie together at the end, every dimension is padded to whole blocks, and the
// padding holds zeros. nChw16c of [N, C, H, W] has one inner block, 16 of dimension 1.
struct Layout {
  struct Block {
    int dimension = 0;
    std::int64_t size = 1;

    bool operator==(const Block&) const = default;
  };
  // All empty if row by row. Strides are in elements, between whole blocks of a dimension.
  Shape dims;  // logical
  std::vector<std::int64_t> strides;
  std::vector<Block> blocks;  // the innermost last

  Element element = Element::own;

  bool is_row_major() const { return strides.empty(); }
  bool is_plain() const { return is_row_major() && element == Element::own; }
  bool operator==(const Layout&) const = default;
};

// Dimensions in the order in which they lie, the outermost first, then the inner blocks.
Layout blocked_layout(const Shape& dims, const std::vector<int>& order,
                      std::vector<Layout::Block> blocks);
// nChw16c: channels in blocks.
Layout blocked_channels(const Shape& dims, std::int64_t block);

// Elements with padding; of a layout row by row, those of `shape`.
std::int64_t num_elements(const Layout& layout, const Shape& shape);

std::int64_t element_bytes(const Layout& layout, DType type);

// Between plain float32 and what a float32 tensor is in a layout; `to` of from_plain gets zeros as
// padding, and rounded values where elements are bf16.
void from_plain(const Layout& layout, const Shape& shape, const float* from, void* to);
void to_plain(const Layout& layout, const Shape& shape, const void* from, float* to);

// "plain", "[8, 64, 56, 56] by 200704 3136 896 16 in blocks of 16 d1 as bf16"
std::string to_string(const Layout& layout);

}  // namespace layup
