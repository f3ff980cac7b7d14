// SPDX-License-Identifier: Apache-2.0
// Where the elements of a tensor lie in memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/shape.h"

namespace layup {

// Plain (the default): row by row, without gaps. Blocked: inner blocks of some dimensions lie
// together at the end, every dimension is padded to whole blocks, and the padding holds zeros.
// nChw16c of [N, C, H, W] has one inner block, 16 of dimension 1.
struct Layout {
  struct Block {
    int dimension = 0;
    std::int64_t size = 1;

    bool operator==(const Block&) const = default;
  };
  // All empty if plain. Strides are in elements, between whole blocks of a dimension.
  Shape dims;  // logical
  std::vector<std::int64_t> strides;
  std::vector<Block> blocks;  // the innermost last

  bool is_plain() const { return strides.empty(); }
  bool operator==(const Layout&) const = default;
};

// Dimensions in the order in which they lie, the outermost first, then the inner blocks.
Layout blocked_layout(const Shape& dims, const std::vector<int>& order,
                      std::vector<Layout::Block> blocks);
// nChw16c: channels in blocks.
Layout blocked_channels(const Shape& dims, std::int64_t block);

// Elements with padding; of a plain layout, those of `shape`.
std::int64_t num_elements(const Layout& layout, const Shape& shape);

// Between the logical order (plain) and a layout; `to` of from_plain gets zeros as padding.
void from_plain(const Layout& layout, const Shape& shape, const float* from, float* to);
void to_plain(const Layout& layout, const Shape& shape, const float* from, float* to);

std::string to_string(const Layout& layout);  // "plain", "[8, 64, 56, 56] in blocks of 16 c1"

}  // namespace layup
