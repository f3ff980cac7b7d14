// SPDX-License-Identifier: Apache-2.0
// The made-up data set of data/synthetic.cpp.
#include <doctest/doctest.h>

#include <cmath>

#include "data/dataset.h"
#include "tests/support/dataset_files.h"

namespace layup {
namespace {

using namespace test;

constexpr const char* kSynthetic =
    R"({"format": "synthetic", "shape": [2, 9, 13], "classes": 5, "samples": 500})";

TEST_CASE("synthetic: reproducible from the seed, splits differ") {
  const DatasetSplits a = open_json(kSynthetic, {.seed = 1});
  const DatasetSplits b = open_json(kSynthetic, {.seed = 1});
  const DatasetSplits c = open_json(kSynthetic, {.seed = 2});
  CHECK(a.train->size() == 500);
  CHECK(a.test->size() == 100);
  CHECK(a.train->classes() == 5);
  CHECK(a.train->sample_shape() == Shape{2, 9, 13});
  const auto read = [](const Dataset& set, std::int64_t index) {
    // One byte more, to see that nothing is written beyond the sample.
    Bytes pixels(2 * 9 * 13 + 1, 0xA5);
    std::int32_t label = -1;
    set.read(index, pixels.data(), &label);
    CHECK(label == index % 5);
    CHECK(pixels.back() == 0xA5);
    return pixels;
  };
  CHECK(read(*a.train, 7) == read(*b.train, 7));
  CHECK(read(*a.train, 7) != read(*c.train, 7));
  CHECK(read(*a.train, 7) != read(*a.test, 7));
  CHECK(read(*a.train, 7) != read(*a.train, 12));
  const auto one =
      open_json(R"({"format": "synthetic", "shape": [1, 1, 1], "classes": 2, "samples": 1})");
  CHECK(one.test->size() == 1);
}

TEST_CASE("synthetic: class means of the training set classify the test set") {
  const DatasetSplits splits = open_json(kSynthetic, {.seed = 3});
  constexpr std::size_t kPixels = 2 * 9 * 13;
  std::vector<std::vector<double>> means(5, std::vector<double>(kPixels));
  Bytes pixels(kPixels);
  std::int32_t label = 0;
  for (std::int64_t i = 0; i < splits.train->size(); ++i) {
    splits.train->read(i, pixels.data(), &label);
    for (std::size_t p = 0; p < kPixels; ++p)
      means[static_cast<std::size_t>(label)][p] += pixels[p] / 100.0;
  }
  std::int64_t correct = 0;
  for (std::int64_t i = 0; i < splits.test->size(); ++i) {
    splits.test->read(i, pixels.data(), &label);
    std::size_t nearest = 0;
    double least = INFINITY;
    for (std::size_t k = 0; k < 5; ++k) {
      double distance = 0;
      for (std::size_t p = 0; p < kPixels; ++p)
        distance += (pixels[p] - means[k][p]) * (pixels[p] - means[k][p]);
      if (distance < least) nearest = k;
      least = std::min(least, distance);
    }
    correct += static_cast<std::size_t>(label) == nearest ? 1 : 0;
  }
  CHECK(correct >= 95);
}

TEST_CASE("synthetic: errors of keys") {
  const std::string error = config_error(
      [] { open_json(R"({"format": "synthetic", "shape": [3, 8], "classes": 1, "samples": 0})"); });
  CHECK(contains(error, "expected [channels, height, width], found a list of 2"));
  CHECK(contains(error, "/data/classes"));
  CHECK(contains(error, "/data/samples"));
  CHECK(contains(config_error([] { open_json(R"({"format": "synthetic"})"); }),
                 "\"shape\" is missing"));
  CHECK(contains(config_error([] {
                   open_json(R"({"format": "synthetic", "shape": [3, 0, 8], "classes": 2,
                                 "samples": 1})");
                 }),
                 "/data/shape/1"));
}

}  // namespace
}  // namespace layup
