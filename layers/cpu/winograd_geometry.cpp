// SPDX-License-Identifier: Apache-2.0
#include "layers/cpu/winograd_geometry.h"

#include <algorithm>
#include <tuple>

namespace layup::cpu::winograd {

using Index = std::int64_t;

Geometry::Geometry(const WinogradConv& conv)
    : samples(conv.x[0]),
      is_gradient(conv.pass == Pass::backward_params),
      is_reversed(conv.pass == Pass::backward_data),
      has_bias(conv.has_bias && !is_reversed),
      threads(conv.threads) {
  from = {conv.x[1], conv.x[2], conv.x[3]};
  to = {conv.y[1], conv.y[2], conv.y[3]};
  if (is_reversed) std::swap(from, to);
  for (int i = 0; i < 2; ++i)
    padding[i] = is_reversed ? kFilter - 1 - conv.padding[i] : conv.padding[i];
  tile_rows = divide_up(to.height, kTile);
  tile_columns = divide_up(to.width, kTile);
  tiles = samples * tile_rows * tile_columns;
  chunk = to.channels % kMostChunk == 0 ? kMostChunk : kBlock;
  num_chunks = to.channels / chunk;
  double least = 0;
  for (Index r = 1; r <= threads; ++r) {
    if (threads % r != 0 || (is_gradient && from.channels / kBlock % r != 0)) continue;
    const double cost = cost_of(r, threads / r);
    if (least != 0 && cost >= least) continue;
    least = cost;
    rows = r;
    columns = threads / r;
  }
  std::tie(group, num_groups) = groups_of(rows, columns);
}

double Geometry::imbalance() const {
  const std::int64_t mine = (is_gradient ? 1 : own_tiles(rows)) * own_chunks();
  const std::int64_t all = (is_gradient ? rows : tiles) * num_chunks;
  return static_cast<double>(mine * threads) / static_cast<double>(all);
}

// Tiles at once, and how many times. Every group transforms a part's filters anew, or adds to all
// their gradients: its windows take as many bytes as these do, within what caches hold.
std::pair<Index, Index> Geometry::groups_of(Index r, Index c) const {
  const Index channels = is_gradient ? from.channels / r : from.channels;
  const Index row_bytes = kPlanes * channels * Index{sizeof(float)};
  const Index filter_bytes = row_bytes * divide_up(num_chunks, c) * chunk;
  const Index bytes = is_gradient ? std::clamp<Index>(filter_bytes, 5 << 19, 5 << 20)
                                  : std::clamp<Index>(filter_bytes, 1 << 20, 5 << 19);
  const Index count = divide_up(own_tiles(r), std::max<Index>(32, bytes / row_bytes));
  // An odd number: planes do not all begin at the same few lines of the cache.
  return {divide_up(own_tiles(r), count) | 1, count};
}

// What a part takes, in multiplications of a pair of channels; a transform takes about 8.
double Geometry::cost_of(Index r, Index c) const {
  const auto channels = static_cast<double>(divide_up(num_chunks, c) * chunk);
  const auto other = static_cast<double>(is_gradient ? from.channels / r : own_tiles(r));
  const double times = is_gradient ? 1 : static_cast<double>(groups_of(r, c).second);
  return other * channels + 8 * (2 * other + times * channels);
}

}  // namespace layup::cpu::winograd
