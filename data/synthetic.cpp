// SPDX-License-Identifier: Apache-2.0
// Made-up images that need no files: reproducible from the seed, and learnable.
//
// Each class has a prototype, a chequered field of 8 x 8 random greys per channel stretched to
// the image; a sample is its class's prototype plus noise of its own:
//   pixel = 16 + grey / 2 + noise * 3 / 8,   grey and noise uniform in 0 ... 255
// Sample i has label i mod classes. Everything is a pure function of (seed, split, sample, pixel),
// so that samples are made when they are read and take no memory.
//
// Keys: shape [C, H, W], classes, samples, test_samples (default: a fifth of samples, at least 1).
#include <algorithm>

#include "data/dataset.h"
#include "engine/error.h"
#include "engine/rng.h"

namespace layup {
namespace {

constexpr std::int64_t kGrid = 8;

std::uint32_t byte_of(const Philox& words, std::int64_t i) {
  return words[static_cast<std::size_t>(i / 4)] >> static_cast<unsigned>(8 * (i % 4)) & 0xFFU;
}

// The first pixel of grid cell `cell` along an axis of `length` pixels.
std::int64_t cell_begin(std::int64_t cell, std::int64_t length) {
  return (cell * length + kGrid - 1) / kGrid;
}

class SyntheticDataset final : public Dataset {
 public:
  SyntheticDataset(Shape shape, std::int64_t classes, std::int64_t samples, std::uint64_t seed,
                   std::string_view split)
      : shape_(std::move(shape)),
        classes_(classes),
        samples_(samples),
        prototype_key_(mix(seed ^ fnv1a("synthetic prototype"))),
        noise_key_(mix(seed ^ fnv1a(split))) {}

  std::int64_t size() const override { return samples_; }
  std::int64_t classes() const override { return classes_; }
  Shape sample_shape() const override { return shape_; }

  void read(std::int64_t index, std::uint8_t* pixels, std::int32_t* label) const override {
    LAYUP_ASSERT(index >= 0 && index < samples_);
    const std::int64_t image_class = index % classes_;
    *label = static_cast<std::int32_t>(image_class);
    const std::int64_t height = shape_[1];
    const std::int64_t width = shape_[2];
    Philox noise{};
    std::int64_t position = 0;
    for (std::int64_t c = 0; c < shape_[0]; ++c)
      for (std::int64_t row = 0; row < kGrid; ++row) {
        const Philox greys = philox(prototype_key_, static_cast<std::uint64_t>(image_class),
                                    static_cast<std::uint64_t>(c * kGrid + row));
        for (std::int64_t y = cell_begin(row, height); y < cell_begin(row + 1, height); ++y)
          for (std::int64_t column = 0; column < kGrid; ++column) {
            const std::uint32_t base = 16 + byte_of(greys, column) / 2;
            const std::int64_t end = cell_begin(column + 1, width);
            for (std::int64_t x = cell_begin(column, width); x < end; ++x, ++position) {
              if (position % 16 == 0)
                noise = philox(noise_key_, static_cast<std::uint64_t>(index),
                               static_cast<std::uint64_t>(position / 16));
              pixels[position] =
                  static_cast<std::uint8_t>(base + byte_of(noise, position % 16) * 3 / 8);
            }
          }
      }
  }

 private:
  Shape shape_;
  std::int64_t classes_;
  std::int64_t samples_;
  std::uint64_t prototype_key_;
  std::uint64_t noise_key_;
};

DatasetSplits open_synthetic(JsonReader& data, const DatasetOptions& options) {
  constexpr std::int64_t kMostSamples = std::int64_t{1} << 40;
  const std::size_t errors_before = data.errors().lines().size();
  const bool has_shape = data.has("shape");
  const Shape shape = data.get_int_list("shape", {.min = 1, .max = 1 << 16});
  if (!has_shape)
    data.fail("", "\"shape\" is missing");
  else if (data.errors().lines().size() == errors_before && shape.size() != 3)
    data.fail("shape", "expected [channels, height, width], found a list of " +
                           std::to_string(shape.size()));
  const std::int64_t classes = data.require_int("classes", {.min = 2, .max = 1 << 20});
  const std::int64_t samples = data.require_int("samples", {.min = 1, .max = kMostSamples});
  const std::int64_t test_samples = data.get_int(
      "test_samples", std::max<std::int64_t>(1, samples / 5), {.min = 1, .max = kMostSamples});
  if (data.errors().lines().size() > errors_before) return {};
  DatasetSplits splits;
  splits.train =
      std::make_unique<SyntheticDataset>(shape, classes, samples, options.seed, "synthetic train");
  splits.test = std::make_unique<SyntheticDataset>(shape, classes, test_samples, options.seed,
                                                   "synthetic test");
  return splits;
}

}  // namespace

DatasetFormat synthetic_format() { return {"synthetic", open_synthetic}; }

}  // namespace layup
