// SPDX-License-Identifier: Apache-2.0
#include "data/preprocess.h"

#include <doctest/doctest.h>

#include <array>
#include <set>

#include "engine/error.h"
#include "tests/support/dataset_files.h"

namespace layup {
namespace {

using namespace test;

DataOptions read_options(const std::string& text, std::int64_t channels = 3) {
  const JsonNode node = parse_json(text, "data.json");
  JsonErrors errors("data.json");
  JsonReader reader(node, "/data", errors);
  const DataOptions options = read_data_options(reader, channels);
  errors.throw_if_any();
  return options;
}

std::string options_error(const std::string& text, std::int64_t channels = 3) {
  return config_error([&] { read_options(text, channels); });
}

TEST_CASE("options: defaults and all keys") {
  CHECK(read_options("{}") == DataOptions{});
  const DataOptions options = read_options(R"({
    "normalize": {"mean": [0.5, 0.4, 0.3], "std": [0.25]},
    "augment": [{"type": "flip"}, {"type": "pad_crop", "padding": 4}],
    "loader_threads": 8, "shuffle": false, "drop_last": true})");
  CHECK(options.preprocess.mean == std::vector<float>{0.5F, 0.4F, 0.3F});
  CHECK(options.preprocess.std == std::vector<float>{0.25F});
  CHECK(options.preprocess.crop_padding == 4);
  CHECK(options.preprocess.flip);
  CHECK(options.loader_threads == 8);
  CHECK(!options.shuffle);
  CHECK(options.drop_last);
}

TEST_CASE("options: every misspelt key and bad value is reported where it stands (B25)") {
  CHECK(contains(options_error(R"({"normalise": {}})"), "did you mean \"normalize\"?"));
  CHECK(contains(options_error(R"({"augmnet": []})"), "did you mean \"augment\"?"));
  CHECK(contains(options_error(R"({"loader_thread": 1})"), "did you mean \"loader_threads\"?"));
  CHECK(contains(options_error(R"({"shufle": true})"), "did you mean \"shuffle\"?"));
  CHECK(contains(options_error(R"({"droplast": true})"), "did you mean \"drop_last\"?"));
  const auto normalize = [](const std::string& inner) {
    return options_error(R"({"normalize": {)" + inner + "}}");
  };
  CHECK(contains(normalize(R"("mean": [0], "sdt": [1])"), "did you mean \"std\"?"));
  CHECK(contains(normalize(R"("mean": [0], "sdt": [1])"), "\"std\" is missing"));
  CHECK(contains(normalize(R"("std": [1])"), "\"mean\" is missing"));
  CHECK(contains(normalize(R"("mean": [0, 0], "std": [1])"),
                 "expected 1 value or one per channel (3), found 2 (at /data/normalize/mean)"));
  CHECK(contains(normalize(R"("mean": [], "std": [1])"), "found 0"));
  CHECK(contains(normalize(R"("mean": [0], "std": [0])"), "/data/normalize/std/0"));
  CHECK(contains(normalize(R"("mean": [0], "std": [-1])"), "/data/normalize/std/0"));
  CHECK(contains(normalize(R"("mean": [0], "std": [1e-320])"), "/data/normalize/std/0"));
  CHECK(contains(normalize(R"("mean": [1e300], "std": [1])"), "/data/normalize/mean/0"));
  CHECK(contains(normalize(R"("mean": 0.5, "std": [1])"), "expected a list of numbers"));
  CHECK(options_error(R"({"normalize": {"mean": [0, 0], "std": [1]}})", 0).empty());
  const auto augment = [](const std::string& item) {
    return options_error(R"({"augment": [)" + item + "]}");
  };
  CHECK(contains(augment(R"({"type": "flipp"})"), "did you mean \"flip\"?"));
  CHECK(contains(augment(R"({"type": "flip", "p": 1})"), "unknown key \"p\""));
  CHECK(contains(augment(R"({"type": "pad_crop", "pading": 4})"), "did you mean \"padding\"?"));
  CHECK(contains(augment(R"({"type": "pad_crop", "padding": 0})"), "/data/augment/0/padding"));
  CHECK(contains(augment(R"({"type": "flip"}, {"type": "flip"})"), "\"flip\" is listed twice"));
  CHECK(contains(augment(R"("flip")"), "/data/augment/0"));
  CHECK(contains(options_error(R"({"loader_threads": 0})"), "/data/loader_threads"));
  CHECK(contains(options_error(R"({"loader_threads": 65})"), "/data/loader_threads"));
  CHECK(contains(options_error(R"({"loader_threads": 1.5})"), "/data/loader_threads"));
}

TEST_CASE("pixels are scaled to [0, 1], then normalised by channel") {
  const Bytes pixels = {0, 255, 51, 102, 255, 1};
  const Shape shape = {3, 1, 2};
  std::array<float, 6> x{};
  Preprocessor({}, shape, 1).normalize(pixels.data(), x.data());
  CHECK(x == std::array<float, 6>{0, 1, 51.0F / 255.0F, 102.0F / 255.0F, 1, 1.0F / 255.0F});
  Preprocessor({.mean = {0.5F, 0.25F, 0.1F}, .std = {0.5F, 2.0F, 0.3F}}, shape, 1)
      .normalize(pixels.data(), x.data());
  CHECK(x[0] == -1);
  CHECK(x[1] == 1);
  CHECK(x[2] == (51.0F / 255.0F - 0.25F) / 2.0F);
  CHECK(x[5] == (1.0F / 255.0F - 0.1F) / 0.3F);
  Preprocessor({.mean = {0.5F}, .std = {0.25F}}, shape, 1).normalize(pixels.data(), x.data());
  CHECK(x[4] == 2);
}

// The slow, obvious version: pad, cut, mirror.
std::vector<float> augment_slowly(const Bytes& pixels, const Shape& shape,
                                  const PreprocessOptions& options, const AugmentDraw& draw) {
  const std::int64_t padding = options.crop_padding;
  const std::int64_t padded_h = shape[1] + 2 * padding;
  const std::int64_t padded_w = shape[2] + 2 * padding;
  std::vector<float> x;
  for (std::int64_t c = 0; c < shape[0]; ++c) {
    Bytes padded(static_cast<std::size_t>(padded_h * padded_w), 0);
    for (std::int64_t h = 0; h < shape[1]; ++h)
      for (std::int64_t w = 0; w < shape[2]; ++w)
        padded[static_cast<std::size_t>((h + padding) * padded_w + w + padding)] =
            pixels[static_cast<std::size_t>((c * shape[1] + h) * shape[2] + w)];
    for (std::int64_t h = 0; h < shape[1]; ++h)
      for (std::int64_t w = 0; w < shape[2]; ++w) {
        const std::int64_t from = draw.is_flipped ? shape[2] - 1 - w : w;
        const auto pixel =
            padded[static_cast<std::size_t>((h + draw.dy) * padded_w + from + draw.dx)];
        const float unit = static_cast<float>(pixel) / 255.0F;
        x.push_back((unit - options.mean[static_cast<std::size_t>(c)]) / options.std[0]);
      }
  }
  return x;
}

TEST_CASE("pad_crop and flip equal the slow version, black padding before normalisation") {
  const Shape shape = {2, 5, 3};
  Bytes pixels(30);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(200 + i);
  for (const std::int64_t padding : {0, 1, 4, 9})  // 9: some cuts hold nothing of the image
    for (const bool flip : {false, true}) {
      const PreprocessOptions options{{0.5F, 0.3F}, {0.2F}, padding, flip};
      const Preprocessor preprocessor(options, shape, 11);
      for (std::int64_t sample = 0; sample < 200; ++sample) {
        std::vector<float> x(30, -99);
        preprocessor.augment(pixels.data(), 2, sample, x.data());
        CHECK(x ==
              augment_slowly(pixels, shape, options, draw_augmentation(options, 11, 2, sample)));
      }
    }
}

TEST_CASE("without augmentation a training sample is only normalised") {
  const Bytes pixels = counting(12, 256);
  const Preprocessor preprocessor({.mean = {0.1F}, .std = {0.3F}}, {1, 3, 4}, 5);
  std::array<float, 12> plain{};
  std::array<float, 12> augmented{};
  preprocessor.normalize(pixels.data(), plain.data());
  preprocessor.augment(pixels.data(), 3, 4, augmented.data());
  CHECK(plain == augmented);
}

TEST_CASE("draws differ by epoch, sample and seed, and are even (B24)") {
  const PreprocessOptions options{{}, {}, 4, true};
  constexpr std::int64_t kDraws = 9000;
  std::array<std::int64_t, 9> rows{};
  std::array<std::int64_t, 9> columns{};
  std::int64_t flips = 0;
  std::int64_t same_as_next_epoch = 0;
  std::int64_t same_as_next_sample = 0;
  std::int64_t same_as_other_seed = 0;
  std::int64_t row_is_column = 0;
  for (std::int64_t sample = 0; sample < kDraws; ++sample) {
    const AugmentDraw draw = draw_augmentation(options, 1, 0, sample);
    REQUIRE(draw.dy >= 0);
    REQUIRE(draw.dy <= 8);
    REQUIRE(draw.dx >= 0);
    REQUIRE(draw.dx <= 8);
    ++rows[static_cast<std::size_t>(draw.dy)];
    ++columns[static_cast<std::size_t>(draw.dx)];
    flips += draw.is_flipped ? 1 : 0;
    row_is_column += draw.dx == draw.dy ? 1 : 0;
    CHECK(draw == draw_augmentation(options, 1, 0, sample));
    same_as_next_epoch += draw == draw_augmentation(options, 1, 1, sample) ? 1 : 0;
    same_as_next_sample += draw == draw_augmentation(options, 1, 0, sample + 1) ? 1 : 0;
    same_as_other_seed += draw == draw_augmentation(options, 2, 0, sample) ? 1 : 0;
  }
  // Five standard deviations: 1000 +- 149 a place, 4500 +- 237 flips, 56 +- 37 equal draws.
  for (const std::int64_t count : rows) CHECK(std::abs(count - 1000) < 149);
  for (const std::int64_t count : columns) CHECK(std::abs(count - 1000) < 149);
  CHECK(std::abs(flips - 4500) < 237);
  CHECK(std::abs(row_is_column - 1000) < 149);
  CHECK(std::abs(same_as_next_epoch - 56) < 37);
  CHECK(std::abs(same_as_next_sample - 56) < 37);
  CHECK(std::abs(same_as_other_seed - 56) < 37);
}

}  // namespace
}  // namespace layup
