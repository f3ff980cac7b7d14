// SPDX-License-Identifier: Apache-2.0
#include "layers/im2col_conv.h"

#include <algorithm>
#include <utility>

#include "engine/parallel.h"
#include "engine/shape.h"
#include "layers/gemm.h"
#include "layers/sums.h"

namespace layup {
namespace {

using Index = std::int64_t;

constexpr Index kColumnFloats = 96 * 1024;  // im2col of one tile: stays in a second-level cache
constexpr Index kTilePixels = 256;          // pixels that a tile of small maps gathers
constexpr Index kGatherFloats = 256 * 1024;
constexpr Index kChannelRows = 256;  // rows (c,r,s) of a channel block
constexpr Index kFilterBlock = 256;  // output channels of a unit of the filter gradient
constexpr Index kFilterUnits = 16;   // units wanted, so that threads share them evenly
constexpr Index kPartialFloats = 1 << 20;
constexpr Index kTurnedFloats = 1 << 16;

Index ceil_divide(Index a, Index b) { return (a + b - 1) / b; }
Index even_part(Index count, Index limit) { return ceil_divide(count, ceil_divide(count, limit)); }

// How the work of one convolution is cut up; a function of the geometry.
struct Tiling {
  Index pixels = 0;         // P * Q
  Index channels = 0;       // C' = C / groups
  Index filters = 0;        // K' = K / groups
  Index taps = 0;           // R * S
  bool is_direct = false;   // 1x1, stride 1, no padding: x is the column matrix
  Index samples = 1;        // per tile; more than one if maps are small
  Index tile_pixels = 0;    // per tile; all of them if samples > 1
  Index channel_block = 0;  // input channels per column matrix
  Index row_stride = 0;     // floats from row to row in the workspace

  explicit Tiling(const ConvGeometry& g) {
    pixels = g.out_height * g.out_width;
    channels = g.channels / g.groups;
    filters = g.out_channels / g.groups;
    taps = g.kernel[0] * g.kernel[1];
    if (pixels < kTilePixels / 2 && g.batch > 1)
      samples = std::clamp<Index>(
          std::min(kTilePixels / pixels, kGatherFloats / (filters * pixels)), 1, g.batch);
    is_direct = taps == 1 && g.stride[0] == 1 && g.stride[1] == 1 && g.padding[0] == 0 &&
                g.padding[1] == 0 && samples == 1;
    channel_block = even_part(channels, std::max<Index>(1, kChannelRows / taps));
    tile_pixels = pixels;
    if (samples == 1)
      tile_pixels = even_part(
          pixels, std::max<Index>(kTilePixels / 2, kColumnFloats / (channel_block * taps)));
    // Rows a power of two apart would all fall into the same few cache sets.
    row_stride = round_up(samples * tile_pixels, 16) + 16;
  }

  bool gathers() const { return samples > 1; }
  Index columns_floats() const { return is_direct ? 0 : channel_block * taps * row_stride; }
  Index gather_floats() const { return gathers() ? filters * row_stride : 0; }
  Index thread_floats() const { return round_up(columns_floats() + gather_floats(), 16); }
  Index tiles_per_map() const { return ceil_divide(pixels, tile_pixels); }
  Index weight_row() const { return channels * taps; }
};

// Calls body(workspace of this part, task) for all tasks, each part of them in one thread.
template <typename Body>
void for_tasks(int threads, Index tasks, float* workspace, Index thread_floats, const Body& body) {
  const Index parts = std::min<Index>(threads, tasks);
  parallel_for(threads, parts, [&](Index first, Index last) {
    for (Index part = first; part < last; ++part)
      for (Index task = tasks * part / parts; task < tasks * (part + 1) / parts; ++task)
        body(workspace + part * thread_floats, task);
  });
}

// A tile of output pixels of one group: pixels [begin, end) of samples [n0, n0 + samples).
struct Tile {
  Index n0;
  Index samples;
  Index group;
  Index begin;
  Index end;

  Index columns() const { return samples * (end - begin); }
};

// The matrix of a tile, in a tensor or gathered in the workspace.
struct Block {
  float* data;
  Index stride;
};

struct Conv {
  ConvGeometry g;
  int threads = 1;
  Tiling t{g};

  Index sample_groups() const { return ceil_divide(g.batch, t.samples); }

  Tile tile(Index sample_group, Index group, Index map_tile) const {
    const Index n0 = sample_group * t.samples;
    const Index begin = map_tile * t.tile_pixels;
    return {n0, std::min(t.samples, g.batch - n0), group, begin,
            std::min(begin + t.tile_pixels, t.pixels)};
  }
  // First pixel of input channel c (within the group) of a tile's sample j.
  Index x_offset(const Tile& tile, Index j, Index c) const {
    return ((tile.n0 + j) * g.channels + tile.group * t.channels + c) * g.height * g.width;
  }
  Index y_offset(const Tile& tile, Index j, Index k) const {
    return ((tile.n0 + j) * g.out_channels + tile.group * t.filters + k) * t.pixels + tile.begin;
  }

  // Columns [count * R * S, tile] of input channels c0 to c0 + count.
  MatrixView columns(const Tile& tile, Index c0, Index count, const float* x,
                     float* workspace) const {
    if (t.is_direct) return {x + x_offset(tile, 0, c0) + tile.begin, t.pixels};
    for (Index j = 0; j < tile.samples; ++j)
      im2col(g, count, tile.begin, tile.end, x + x_offset(tile, j, c0),
             workspace + j * (tile.end - tile.begin), t.row_stride);
    return {workspace, t.row_stride};
  }

  // dy [count, tile] of output channels k0 to k0 + count.
  MatrixView gradient(const Tile& tile, Index k0, Index count, const float* dy,
                      float* workspace) const {
    if (!t.gathers()) return {dy + y_offset(tile, 0, k0), t.pixels};
    float* rows = workspace + t.columns_floats();
    for (Index k = 0; k < count; ++k)
      for (Index j = 0; j < tile.samples; ++j)
        std::copy_n(dy + y_offset(tile, j, k0 + k), t.pixels,
                    rows + k * t.row_stride + j * t.pixels);
    return {rows, t.row_stride};
  }

  void forward(const float* x, const float* weight, const float* bias, float* y,
               float* workspace) const;
  void data_gradient(const float* dy, const float* weight, float* dx, float* workspace) const;
  void filter_gradient(const float* x, const float* dy, float* dweight, float* workspace) const;
  void bias_gradient(const float* dy, float* dbias) const;

  // The filter gradient is cut into units: group x block of filters x block of channels x chunk
  // of samples. Chunks have partial sums of their own, which are then added in order.
  Index filter_block() const { return even_part(t.filters, kFilterBlock); }
  Index num_chunks() const {
    const Index units = g.groups * ceil_divide(t.filters, filter_block()) *
                        ceil_divide(t.channels, t.channel_block);
    const Index room = kPartialFloats / (g.out_channels * t.weight_row());
    return std::clamp<Index>(std::min(ceil_divide(kFilterUnits, units), room), 1, sample_groups());
  }
  Index partial_floats() const {
    const Index chunks = num_chunks();
    return chunks == 1 ? 0 : round_up(chunks * g.out_channels * t.weight_row(), 16);
  }
  Index workspace_floats() const { return threads * t.thread_floats(); }
};

void Conv::forward(const float* x, const float* weight, const float* bias, float* y,
                   float* workspace) const {
  const Index tiles = t.tiles_per_map();
  for_tasks(
      threads, sample_groups() * g.groups * tiles, workspace, t.thread_floats(),
      [&](float* mine, Index task) {
        const Tile tile =
            this->tile(task / tiles / g.groups, task / tiles % g.groups, task % tiles);
        const Index first_filter = tile.group * t.filters;
        const Block to = t.gathers() ? Block{mine + t.columns_floats(), t.row_stride}
                                     : Block{y + y_offset(tile, 0, 0), t.pixels};
        if (bias != nullptr)
          for (Index k = 0; k < t.filters; ++k)
            std::fill_n(to.data + k * to.stride, tile.columns(), bias[first_filter + k]);
        for (Index c0 = 0; c0 < t.channels; c0 += t.channel_block) {
          const Index count = std::min(t.channel_block, t.channels - c0);
          gemm(1, t.filters, tile.columns(), count * t.taps,
               {weight + first_filter * t.weight_row() + c0 * t.taps, t.weight_row()},
               columns(tile, c0, count, x, mine), to.data, to.stride, bias != nullptr || c0 > 0);
        }
        if (!t.gathers()) return;
        for (Index j = 0; j < tile.samples; ++j)
          for (Index k = 0; k < t.filters; ++k)
            std::copy_n(to.data + k * to.stride + j * t.pixels, t.pixels, y + y_offset(tile, j, k));
      });
}

void Conv::data_gradient(const float* dy, const float* weight, float* dx, float* workspace) const {
  const Index blocks = ceil_divide(t.channels, t.channel_block);
  for_tasks(threads, sample_groups() * g.groups * blocks, workspace, t.thread_floats(),
            [&](float* mine, Index task) {
              const Index c0 = task % blocks * t.channel_block;
              const Index count = std::min(t.channel_block, t.channels - c0);
              for (Index i = 0; i < t.tiles_per_map(); ++i) {
                const Tile tile = this->tile(task / blocks / g.groups, task / blocks % g.groups, i);
                const Block to = t.is_direct
                                     ? Block{dx + x_offset(tile, 0, c0) + tile.begin, t.pixels}
                                     : Block{mine, t.row_stride};
                gemm(1, count * t.taps, tile.columns(), t.filters,
                     {weight + tile.group * t.filters * t.weight_row() + c0 * t.taps,
                      t.weight_row(), true},
                     gradient(tile, 0, t.filters, dy, mine), to.data, to.stride, false);
                if (t.is_direct) continue;
                for (Index j = 0; j < tile.samples; ++j) {
                  float* image = dx + x_offset(tile, j, c0);
                  if (i == 0) std::fill_n(image, count * g.height * g.width, 0.0F);
                  col2im(g, count, tile.begin, tile.end, to.data + j * (tile.end - tile.begin),
                         to.stride, image);
                }
              }
            });
}

void Conv::filter_gradient(const float* x, const float* dy, float* dweight,
                           float* workspace) const {
  const Index filter_blocks = ceil_divide(t.filters, filter_block());
  const Index channel_blocks = ceil_divide(t.channels, t.channel_block);
  const Index chunks = num_chunks();
  const Index num_weights = g.out_channels * t.weight_row();
  float* partial = chunks == 1 ? dweight : workspace + threads * t.thread_floats();
  for_tasks(threads, g.groups * filter_blocks * channel_blocks * chunks, workspace,
            t.thread_floats(), [&](float* mine, Index task) {
              const Index chunk = task % chunks;
              const Index c0 = task / chunks % channel_blocks * t.channel_block;
              const Index k0 = task / chunks / channel_blocks % filter_blocks * filter_block();
              const Index group = task / chunks / channel_blocks / filter_blocks;
              const Index count = std::min(t.channel_block, t.channels - c0);
              const Index filters = std::min(filter_block(), t.filters - k0);
              float* to = partial + chunk * num_weights +
                          (group * t.filters + k0) * t.weight_row() + c0 * t.taps;
              const Index first = sample_groups() * chunk / chunks;
              for (Index s = first; s < sample_groups() * (chunk + 1) / chunks; ++s)
                for (Index i = 0; i < t.tiles_per_map(); ++i) {
                  const Tile tile = this->tile(s, group, i);
                  MatrixView transposed = columns(tile, c0, count, x, mine);
                  transposed.transposed = true;
                  gemm(1, filters, count * t.taps, tile.columns(),
                       gradient(tile, k0, filters, dy, mine), transposed, to, t.weight_row(),
                       s > first || i > 0);
                }
            });
  if (chunks == 1) return;
  parallel_for(threads, num_weights, [&](Index begin, Index end) {
    std::copy(partial + begin, partial + end, dweight + begin);
    for (Index chunk = 1; chunk < chunks; ++chunk)
      for (Index i = begin; i < end; ++i) dweight[i] += partial[chunk * num_weights + i];
  });
}

void Conv::bias_gradient(const float* dy, float* dbias) const {
  parallel_for(threads, g.out_channels, [&](Index begin, Index end) {
    for (Index k = begin; k < end; ++k) {
      LaneSum sum;
      for (Index n = 0; n < g.batch; ++n) {
        const float* row = dy + (n * g.out_channels + k) * t.pixels;
        sum.add(t.pixels, [row](Index i) { return static_cast<double>(row[i]); });
      }
      dbias[k] = static_cast<float>(sum.total());
    }
  });
}

// With stride 1 the data gradient is itself a convolution: of dy, with the roles of C and K
// swapped, the kernel turned by 180 degrees and padding dilation * (R - 1) - padding. It runs at
// the speed of the forward pass, where col2im suffers from a product that is only K' deep. But it
// needs a turned copy of the weights and copies K' maps in place of C', so it serves small weights
// and K' up to C'.
bool runs_as_convolution(const ConvGeometry& g) {
  return g.stride[0] == 1 && g.stride[1] == 1 && g.kernel[0] * g.kernel[1] > 1 &&
         g.out_channels <= g.channels &&
         g.out_channels * (g.channels / g.groups) * g.kernel[0] * g.kernel[1] <= kTurnedFloats;
}

ConvGeometry turned(const ConvGeometry& g) {
  ConvGeometry result = g;
  std::swap(result.channels, result.out_channels);
  std::swap(result.height, result.out_height);
  std::swap(result.width, result.out_width);
  for (int i = 0; i < 2; ++i) result.padding[i] = g.dilation[i] * (g.kernel[i] - 1) - g.padding[i];
  return result;
}

// weight [groups,K',C',RS] -> [groups,C',K',RS] with RS reversed.
void turn_weights(const ConvGeometry& g, const float* weight, float* result) {
  const Tiling t(g);
  for (Index group = 0; group < g.groups; ++group)
    for (Index k = 0; k < t.filters; ++k)
      for (Index c = 0; c < t.channels; ++c, weight += t.taps)
        std::reverse_copy(weight, weight + t.taps,
                          result + ((group * t.channels + c) * t.filters + k) * t.taps);
}

Index data_gradient_floats(const Conv& conv) {
  if (!runs_as_convolution(conv.g)) return conv.workspace_floats();
  const Conv reversed{turned(conv.g), conv.threads};
  return reversed.workspace_floats() + conv.g.out_channels * conv.t.weight_row();
}

}  // namespace

std::int64_t im2col_workspace_bytes(const ConvGeometry& g, int threads, ConvPass pass) {
  const Conv conv{g, threads};
  Index floats = conv.workspace_floats();
  if (pass == ConvPass::filter_gradient) floats += conv.partial_floats();
  if (pass == ConvPass::data_gradient) floats = data_gradient_floats(conv);
  return checked_multiply(floats, sizeof(float));
}

void im2col_forward(const ConvGeometry& g, int threads, const float* x, const float* weight,
                    const float* bias, float* y, float* workspace) {
  Conv{g, threads}.forward(x, weight, bias, y, workspace);
}

void im2col_data_gradient(const ConvGeometry& g, int threads, const float* dy, const float* weight,
                          float* dx, float* workspace) {
  if (!runs_as_convolution(g)) return Conv{g, threads}.data_gradient(dy, weight, dx, workspace);
  const Conv reversed{turned(g), threads};
  float* turned_weight = workspace + reversed.workspace_floats();
  turn_weights(g, weight, turned_weight);
  reversed.forward(dy, turned_weight, nullptr, dx, workspace);
}

void im2col_filter_gradient(const ConvGeometry& g, int threads, const float* x, const float* dy,
                            float* dweight, float* workspace) {
  Conv{g, threads}.filter_gradient(x, dy, dweight, workspace);
}

void im2col_bias_gradient(const ConvGeometry& g, int threads, const float* dy, float* dbias) {
  Conv{g, threads}.bias_gradient(dy, dbias);
}

}  // namespace layup
