// SPDX-License-Identifier: Apache-2.0
// Static arena packing: blocks with known lifetimes get byte offsets (dynamic storage allocation).
#pragma once

#include <cstdint>
#include <vector>

namespace layup {

// Must exist during the half-open interval [begin, end).
struct Block {
  std::int64_t bytes = 0;
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

struct Packing {
  std::vector<std::int64_t> offsets;  // by block
  std::int64_t height_bytes = 0;      // the largest offset + bytes
};

// The most bytes that are live at one time: no packing is lower.
std::int64_t max_live_bytes(const std::vector<Block>& blocks);

// The best of several orders, ending as soon as one reaches max_live_bytes. Time-ordered ones
// (best fit, first fit, from either end of the step) are near-linear and always tried;
// size-ordered ones are quadratic and tried for up to some thousand blocks. Deterministic.
Packing pack_arena(const std::vector<Block>& blocks);

}  // namespace layup
