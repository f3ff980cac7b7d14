// SPDX-License-Identifier: Apache-2.0
#include "data/preprocess.h"

#include <algorithm>

#include "engine/error.h"
#include "engine/rng.h"

namespace layup {
namespace {

constexpr std::int64_t kMostPadding = 1024;

std::vector<float> read_per_channel(JsonReader& normalize, std::string_view key, NumberRange range,
                                    std::int64_t channels) {
  if (!normalize.has(key)) {
    normalize.fail("", "\"" + std::string(key) + "\" is missing");
    return {};
  }
  const std::size_t errors_before = normalize.errors().lines().size();
  const std::vector<double> values = normalize.get_number_list(key, range);
  const auto count = static_cast<std::int64_t>(values.size());
  const bool fits = count == 1 || (count > 0 && (channels == 0 || count == channels));
  if (normalize.errors().lines().size() == errors_before && !fits)
    normalize.fail(key, "expected 1 value or one per channel" +
                            (channels > 0 ? " (" + std::to_string(channels) + ")" : "") +
                            ", found " + std::to_string(count));
  return {values.begin(), values.end()};
}

void read_augment(JsonReader& data, PreprocessOptions& options) {
  const std::vector<std::string> types = {"pad_crop", "flip"};
  std::vector<std::string> seen;
  for (JsonReader& item : data.get_object_list("augment")) {
    const std::size_t errors_before = item.errors().lines().size();
    const std::string type = item.require_choice("type", types);
    if (item.errors().lines().size() > errors_before) continue;
    if (std::find(seen.begin(), seen.end(), type) != seen.end())
      item.fail("type", "\"" + type + "\" is listed twice");
    seen.push_back(type);
    if (type == "pad_crop")
      options.crop_padding = item.require_int("padding", {.min = 1, .max = kMostPadding});
    else
      options.flip = true;
    item.finish();
  }
}

// A word as a number in 0 ... count-1. The bias is below count / 2^32.
std::int64_t below(std::uint32_t word, std::int64_t count) {
  return static_cast<std::int64_t>(std::uint64_t{word} * static_cast<std::uint64_t>(count) >> 32U);
}

}  // namespace

DataOptions read_data_options(JsonReader& data, std::int64_t channels) {
  DataOptions options;
  if (auto normalize = data.get_object("normalize")) {
    options.preprocess.mean =
        read_per_channel(*normalize, "mean", {.min = -1e30, .max = 1e30}, channels);
    // The least normal float32: a smaller one is 0 or loses digits.
    options.preprocess.std =
        read_per_channel(*normalize, "std", {.min = 0x1.0p-126, .max = 0x1.0p+126}, channels);
    normalize->finish();
  }
  read_augment(data, options.preprocess);
  options.loader_threads =
      static_cast<int>(data.get_int("loader_threads", 1, {.min = 1, .max = 64}));
  options.shuffle = data.get_bool("shuffle", true);
  options.drop_last = data.get_bool("drop_last", false);
  data.finish();
  return options;
}

AugmentDraw draw_augmentation(const PreprocessOptions& options, std::uint64_t seed,
                              std::int64_t epoch, std::int64_t sample) {
  const Philox words = philox(mix(seed ^ fnv1a("augment")), static_cast<std::uint64_t>(epoch),
                              static_cast<std::uint64_t>(sample));
  const std::int64_t places = 2 * options.crop_padding + 1;
  return {below(words[0], places), below(words[1], places), options.flip && (words[2] >> 31U) != 0};
}

Preprocessor::Preprocessor(const PreprocessOptions& options, const Shape& sample_shape,
                           std::uint64_t seed)
    : options_(options), seed_(seed) {
  LAYUP_ASSERT(sample_shape.size() == 3);
  channels_ = sample_shape[0];
  height_ = sample_shape[1];
  width_ = sample_shape[2];
  const auto channel_value = [&](const std::vector<float>& values, std::int64_t c, float absent) {
    if (values.empty()) return absent;
    LAYUP_ASSERT(values.size() == 1 || static_cast<std::int64_t>(values.size()) == channels_);
    return values.size() == 1 ? values[0] : values[static_cast<std::size_t>(c)];
  };
  table_.resize(static_cast<std::size_t>(channels_) * 256);
  for (std::int64_t c = 0; c < channels_; ++c)
    for (std::int64_t pixel = 0; pixel < 256; ++pixel) {
      const float unit = static_cast<float>(pixel) / 255.0F;
      table_[static_cast<std::size_t>(c * 256 + pixel)] =
          (unit - channel_value(options.mean, c, 0)) / channel_value(options.std, c, 1);
    }
}

void Preprocessor::normalize(const std::uint8_t* pixels, float* x) const {
  const std::int64_t plane = height_ * width_;
  for (std::int64_t c = 0; c < channels_; ++c) {
    const float* table = table_.data() + c * 256;
    for (std::int64_t i = c * plane; i < (c + 1) * plane; ++i) x[i] = table[pixels[i]];
  }
}

void Preprocessor::augment(const std::uint8_t* pixels, std::int64_t epoch, std::int64_t sample,
                           float* x) const {
  const AugmentDraw draw = draw_augmentation(options_, seed_, epoch, sample);
  const std::int64_t shift_y = draw.dy - options_.crop_padding;
  const std::int64_t shift_x = draw.dx - options_.crop_padding;
  // Columns of the cut that lie inside the image, before mirroring.
  const std::int64_t first = std::clamp<std::int64_t>(-shift_x, 0, width_);
  const std::int64_t last = std::clamp<std::int64_t>(width_ - shift_x, first, width_);
  for (std::int64_t c = 0; c < channels_; ++c) {
    const float* table = table_.data() + c * 256;
    for (std::int64_t y = 0; y < height_; ++y) {
      float* out = x + (c * height_ + y) * width_;
      const std::int64_t from_y = y + shift_y;
      const bool is_inside = from_y >= 0 && from_y < height_;
      const std::uint8_t* row = pixels + (c * height_ + (is_inside ? from_y : 0)) * width_;
      std::fill(out, out + width_, table[0]);
      if (!is_inside) continue;
      for (std::int64_t column = first; column < last; ++column)
        out[draw.is_flipped ? width_ - 1 - column : column] = table[row[column + shift_x]];
    }
  }
}

}  // namespace layup
