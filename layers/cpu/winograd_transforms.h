// SPDX-License-Identifier: Apache-2.0
// Between images or filters in blocks of channels and the planes of Winograd's products. Planes of
// a group of tiles are [36, group, channels], planes of filters [36, from, chunk].
#pragma once

#include <algorithm>
#include <optional>

#include "layers/cpu/vector.h"
#include "layers/cpu/winograd_geometry.h"

namespace layup::cpu::winograd {

using V = Vectors<kBlock>;
using Float = V::Float;

// Element (i, j) of a window in the plane of that number.
inline auto to_planes(float* planes, std::int64_t stride) {
  return [=](int i, int j, const Float& value) {
    V::store(planes + (i * kWindow + j) * stride, value);
  };
}
inline auto from_planes(const float* planes, std::int64_t stride) {
  return [=](int i, int j) { return V::load(planes + (i * kWindow + j) * stride); };
}

class Transforms {
  using Index = std::int64_t;

 public:
  explicit Transforms(const Geometry& geometry) : g_(geometry) {}

  // The windows of a tile, of channels from `first` on, to row `at` of the group; zeros for no
  // tile.
  void windows(const float* image, std::optional<Index> number, Index at, Index first,
               float* planes) const {
    for (Index c = 0; c < g_.own_from(); c += kBlock) {
      float* const to = planes + at * g_.own_from() + c;
      map_pixels<DataMap>(image, g_.from, (first + c) / kBlock, number, g_.padding,
                          g_.group * g_.own_from(), to);
    }
  }
  // Likewise of dy, of the channels of a chunk.
  void upstream(const float* image, std::optional<Index> number, Index at, Index chunk,
                float* planes) const {
    constexpr Index kNone[2] = {0, 0};
    for (Index c = 0; c < g_.chunk; c += kBlock)
      map_pixels<UpstreamMap>(image, g_.to, (chunk * g_.chunk + c) / kBlock, number, kNone,
                              g_.group * g_.chunk, planes + at * g_.chunk + c);
  }
  // From row `at` of the group to a tile of the chunk's channels.
  void outputs(const float* planes, Index number, Index at, Index chunk, const float* bias,
               float* image) const {
    const Tile t = tile(number);
    const Index rows = std::min<Index>(kTile, g_.to.height - t.row);
    const Index columns = std::min<Index>(kTile, g_.to.width - t.column);
    for (Index c = 0; c < g_.chunk; c += kBlock) {
      const Index channel = chunk * g_.chunk + c;
      const Float shift = bias == nullptr ? Float{} : V::load(bias + channel);
      const float* const from = planes + at * g_.chunk + c;
      float* const to = image + plane(g_.to, t.sample, channel / kBlock) +
                        (t.row * g_.to.width + t.column) * kBlock;
      apply_twice<Float, OutputMap>(
          from_planes(from, g_.group * g_.chunk), [&](int i, int j, const Float& value) {
            if (i < rows && j < columns)
              V::store(to + (i * g_.to.width + j) * kBlock, value + shift);
          });
    }
  }

  // The filters of a chunk to planes [from, chunk].
  void filters(const float* weight, Index chunk, float* planes) const {
    Strips strips{g_.from.channels * g_.chunk, g_.chunk};
    for (Index block = 0; block < g_.from.channels / kBlock; ++block)
      for (Index half = 0; half < kBlock; half += kStripRows) {
        for (Index c = 0; c < g_.chunk; c += kBlock) {
          const Index written = (chunk * g_.chunk + c) / kBlock;
          float turned[kPair];
          const float* taps = weight + pair(written, block);
          if (g_.is_reversed) {
            turn(weight + pair(block, written), half, turned);
            taps = turned;
          }
          for (Index row = 0; row < kStripRows; ++row)
            apply_twice<Float, FilterMap>(
                [&](int i, int j) {
                  return V::load(taps + ((i * kFilter + j) * kBlock + half + row) * kBlock);
                },
                to_planes(strips.at(row, c), strips.stride()));
        }
        strips.write(planes + (block * kBlock + half) * g_.chunk);
      }
  }
  // Of channels of `from` from `first` on, and a chunk.
  void filter_gradients(const float* planes, Index first, Index chunk, float* weight) const {
    Strips strips{g_.own_from() * g_.chunk, g_.chunk};
    for (Index block = 0; block < g_.own_from() / kBlock; ++block)
      for (Index half = 0; half < kBlock; half += kStripRows) {
        strips.read(planes + (block * kBlock + half) * g_.chunk);
        for (Index c = 0; c < g_.chunk; c += kBlock) {
          float* const taps =
              weight + pair((chunk * g_.chunk + c) / kBlock, first / kBlock + block);
          for (Index row = 0; row < kStripRows; ++row)
            apply_twice<Float, GradientMap>(
                from_planes(strips.at(row, c), strips.stride()),
                [&](int i, int j, const Float& value) {
                  V::store(taps + ((i * kFilter + j) * kBlock + half + row) * kBlock, value);
                });
        }
      }
  }
  void bias_gradients(const float* dy, Index chunk, float* bias) const {
    constexpr Index kRun = 8;  // pixels that are summed in float
    const Index pixels = g_.to.height * g_.to.width;
    for (Index channel = chunk * g_.chunk; channel < (chunk + 1) * g_.chunk; channel += kBlock) {
      V::Double sum{};
      for (Index n = 0; n < g_.samples; ++n) {
        const float* of_sample = dy + plane(g_.to, n, channel / kBlock);
        for (Index i = 0; i < pixels; i += kRun) {
          Float run{};
          for (Index k = i; k < std::min(i + kRun, pixels); ++k)
            run += V::load(of_sample + k * kBlock);
          sum += V::widen(run);
        }
      }
      V::store(bias + channel, V::narrow(sum));
    }
  }

 private:
  static constexpr int kTaps = kFilter * kFilter;
  static constexpr Index kPair = Index{kTaps} * kBlock * kBlock;
  static constexpr Index kStripRows = 8;

  struct Tile {
    Index sample, row, column;  // of its first pixel
  };
  Tile tile(Index number) const {
    const Index row = number / g_.tile_columns;
    return {row / g_.tile_rows, row % g_.tile_rows * kTile, number % g_.tile_columns * kTile};
  }
  // Elements before a sample's block.
  static Index plane(const Image& image, Index sample, Index block) {
    return (sample * image.channels / kBlock + block) * image.height * image.width * kBlock;
  }
  // Elements before the filters between two blocks of channels of the weight.
  Index pair(Index k_block, Index c_block) const {
    const Index c_blocks = (g_.is_reversed ? g_.to : g_.from).channels / kBlock;
    return (k_block * c_blocks + c_block) * kPair;
  }
  // Rows [first, first + kStripRows) of k of [3, 3, c, k] to [3, 3, k, c], the taps in reverse.
  static void turn(const float* taps, Index first, float* turned) {
    for (Index tap = 0; tap < kTaps; ++tap)
      for (Index k = first; k < first + kStripRows; ++k)
        for (Index c = 0; c < kBlock; ++c)
          turned[((kTaps - 1 - tap) * kBlock + k) * kBlock + c] =
              taps[(tap * kBlock + c) * kBlock + k];
  }
  // The pixels that the map needs, from the tile minus the padding on; zeros outside of the image.
  template <typename Map>
  void map_pixels(const float* pixels, const Image& image, Index block, std::optional<Index> number,
                  const Index (&padding)[2], Index stride, float* planes) const {
    const auto store = to_planes(planes, stride);
    if (!number) {
      apply_twice<Float, Map>([](int, int) { return Float{}; }, store);
      return;
    }
    const Tile t = tile(*number);
    const Index top = t.row - padding[0];
    const Index left = t.column - padding[1];
    const float* const from = pixels + plane(image, t.sample, block);
    const auto load = [&](int i, int j) {
      return V::load(from + ((top + i) * image.width + left + j) * kBlock);
    };
    if (top >= 0 && left >= 0 && top + Map::kFrom <= image.height &&
        left + Map::kFrom <= image.width) {
      apply_twice<Float, Map>(load, store);
      return;
    }
    apply_twice<Float, Map>(
        [&](int i, int j) {
          const bool is_inside =
              top + i >= 0 && top + i < image.height && left + j >= 0 && left + j < image.width;
          return is_inside ? load(i, j) : Float{};
        },
        store);
  }

  // A few rows of all planes: planes lie at multiples of 4 KiB, where a column of all of them would
  // want the same few lines of the cache.
  class Strips {
   public:
    Strips(Index plane, Index width) : plane_(plane), width_(width) {}
    Index stride() const { return kStripRows * width_; }  // from plane to plane
    float* at(Index row, Index column) { return values_ + row * width_ + column; }
    void write(float* planes) const {
      for (Index e = 0; e < kPlanes; ++e)
        std::copy_n(values_ + e * stride(), stride(), planes + e * plane_);
    }
    void read(const float* planes) {
      for (Index e = 0; e < kPlanes; ++e)
        std::copy_n(planes + e * plane_, stride(), values_ + e * stride());
    }

   private:
    Index plane_, width_;
    alignas(64) float values_[kPlanes * kStripRows * kMostChunk];
  };

  Geometry g_;
};

}  // namespace layup::cpu::winograd
