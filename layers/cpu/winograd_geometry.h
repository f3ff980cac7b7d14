// SPDX-License-Identifier: Apache-2.0
// How the work of a Winograd convolution is divided. It is a grid of parts, one for each thread,
// that share nothing: what two threads would write and read in turns costs more than doing it
// twice. A part of an image is some of its tiles and some of the channels that are written; a part
// of a gradient of filters is some input and some output channels. A part goes over groups of
// tiles, and within a group over chunks of the channels that are written.
#pragma once

#include <cstdint>
#include <utility>

#include "layers/cpu/winograd.h"
#include "layers/cpu/winograd_maps.h"

namespace layup::cpu::winograd {

inline constexpr std::int64_t kBlock = 16;      // channels
inline constexpr std::int64_t kMostChunk = 32;  // channels whose filters stay in a thread's cache

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Image {
  std::int64_t channels = 0, height = 0, width = 0;
};

struct Geometry {
  explicit Geometry(const WinogradConv& conv);

  std::int64_t samples = 0;
  Image from;  // windows are read from it, from 4 * (row, column) - padding on
  Image to;    // tiles are written to it; backward_params: dy
  std::int64_t padding[2] = {0, 0};
  bool is_gradient = false;  // backward_params
  bool is_reversed = false;  // backward_data: filters upside down, from output to input channels
  bool has_bias = false;
  int threads = 1;
  std::int64_t tile_rows = 0, tile_columns = 0, tiles = 0;
  std::int64_t chunk = 0, num_chunks = 0;  // channels of `to`
  std::int64_t rows = 1;     // parts of the tiles, or, of gradients, of the channels of `from`
  std::int64_t columns = 1;  // parts of the chunks
  std::int64_t group = 0, num_groups = 0;  // tiles at once

  // Work of the busiest part, over a fair share of all work.
  double imbalance() const;
  // Gradients are summed up over several groups of tiles.
  bool is_summed() const { return is_gradient && num_groups > 1; }
  // Chunks of the part that has most.
  std::int64_t own_chunks() const { return divide_up(num_chunks, columns); }
  // Channels of `from` that a part reads; floats of a chunk's filters, and of its tiles, in planes.
  std::int64_t own_from() const { return is_gradient ? from.channels / rows : from.channels; }
  std::int64_t chunk_filters() const { return kPlanes * own_from() * chunk; }
  std::int64_t chunk_tiles() const { return kPlanes * group * chunk; }

 private:
  std::int64_t own_tiles(std::int64_t r) const { return is_gradient ? tiles : divide_up(tiles, r); }
  std::pair<std::int64_t, std::int64_t> groups_of(std::int64_t r, std::int64_t c) const;
  double cost_of(std::int64_t r, std::int64_t c) const;
};

}  // namespace layup::cpu::winograd
