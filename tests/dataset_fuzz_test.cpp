// SPDX-License-Identifier: Apache-2.0
// Random damage to data files gives a DataError or a set that can be read, and nothing else.
#include <doctest/doctest.h>

#include "engine/error.h"
#include "engine/rng.h"
#include "tests/support/dataset_files.h"
#include "tests/support/temp_folder.h"

namespace layup {
namespace {

using namespace test;

constexpr std::uint64_t kSeed = 20240611;

// One to four bytes changed, most of them in front, where headers are; at times the end cut off or
// bytes added.
Bytes damage(Bytes bytes, std::uint64_t round) {
  const Philox how = philox(kSeed, round, 0);
  if (how[0] % 4 == 0) bytes.resize(how[1] % bytes.size());
  if (how[0] % 8 == 1) bytes.insert(bytes.end(), how[1] % 100, 7);
  for (std::uint64_t i = 0; i <= how[2] % 4 && !bytes.empty(); ++i) {
    const Philox where = philox(kSeed, round, i + 1);
    const std::size_t reach =
        where[0] % 3 != 0 ? std::min<std::size_t>(24, bytes.size()) : bytes.size();
    bytes[where[1] % reach] = static_cast<std::uint8_t>(where[2] % 3 == 0 ? 0xFF : where[3]);
  }
  return bytes;
}

// Opens the set and reads all of it; false for a DataError. Anything else fails the test.
bool is_good(const std::string& text) {
  try {
    const DatasetSplits splits = open_json(text);
    Bytes pixels(static_cast<std::size_t>(num_elements(splits.train->sample_shape())));
    std::int32_t label = 0;
    for (std::int64_t i = 0; i < splits.train->size(); ++i) {
      splits.train->read(i, pixels.data(), &label);
      CHECK(label >= 0);
      CHECK(label < splits.train->classes());
    }
    return true;
  } catch (const DataError& error) {
    CHECK(std::string(error.what()).size() > 20);
    return false;
  }
}

struct Outcome {
  int good = 0;
  int refused = 0;
};

Outcome attack(const std::filesystem::path& file, const Bytes& intact, const std::string& text,
               std::uint64_t first_round, std::uint64_t rounds) {
  Outcome outcome;
  for (std::uint64_t round = first_round; round < first_round + rounds; ++round) {
    write_file(file, damage(intact, round));
    ++(is_good(text) ? outcome.good : outcome.refused);
  }
  write_file(file, intact);
  CHECK(is_good(text));
  return outcome;
}

TEST_CASE("fuzz: IDX images and labels, raw and gzip") {
  TempFolder folder;
  const Bytes images = idx_bytes({20, 3, 4}, counting(240, 256));
  const Bytes labels = idx_bytes({20}, counting(20, 10));
  const auto images_file = folder / "train-images-idx3-ubyte";
  const auto labels_file = folder / "train-labels-idx1-ubyte";
  write_file(images_file, images);
  write_file(labels_file, labels);
  const std::string text =
      R"({"format": "idx", "classes": 10, "path": )" + quoted(folder.path()) + "}";
  const Outcome raw = attack(images_file, images, text, 0, 1500);
  CHECK(raw.good > 0);  // or the damage is so bad that nothing behind the header is tried
  CHECK(raw.refused > 500);
  const Outcome raw_labels = attack(labels_file, labels, text, 10000, 1000);
  CHECK(raw_labels.good > 0);
  CHECK(raw_labels.refused > 300);
  CHECK(attack(images_file, gzip(images), text, 20000, 1000).refused > 300);
  CHECK(attack(labels_file, gzip(labels), text, 30000, 500).refused > 100);
}

TEST_CASE("fuzz: CIFAR files") {
  TempFolder folder;
  const Bytes train = cifar_bytes(4, {20, 100});
  write_file(folder / "train.bin", train);
  write_file(folder / "test.bin", cifar_bytes(1, {20, 100}));
  const std::string text = R"({"format": "cifar100", "path": )" + quoted(folder.path()) + "}";
  const Outcome raw = attack(folder / "train.bin", train, text, 40000, 1000);
  CHECK(raw.good > 0);
  CHECK(raw.refused > 200);
  CHECK(attack(folder / "train.bin", gzip(train), text, 50000, 500).refused > 100);
}

}  // namespace
}  // namespace layup
