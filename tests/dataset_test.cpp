// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <doctest/doctest.h>

#include "engine/error.h"
#include "tests/support/dataset_files.h"
#include "tests/support/temp_folder.h"

namespace layup {
namespace {

using namespace test;

constexpr const char* kTrainImages = "train-images-idx3-ubyte";
constexpr const char* kTrainLabels = "train-labels-idx1-ubyte";
constexpr const char* kTestImages = "t10k-images-idx3-ubyte";
constexpr const char* kTestLabels = "t10k-labels-idx1-ubyte";

// 20 images of 3 x 4 pixels that count up, labels that count up to 10.
Bytes images_20() { return idx_bytes({20, 3, 4}, counting(240, 256)); }
Bytes labels_20() { return idx_bytes({20}, counting(20, 10)); }

void write_train(const TempFolder& folder, const Bytes& images, const Bytes& labels) {
  write_file(folder / kTrainImages, images);
  write_file(folder / kTrainLabels, labels);
}

DatasetSplits open_idx_folder(const TempFolder& folder, const std::string& more = "") {
  return open_json(R"({"format": "idx", "path": )" + quoted(folder.path()) + more + "}");
}

std::string idx_error(const TempFolder& folder, const std::string& more = "") {
  return data_error([&] { open_idx_folder(folder, more); });
}

TEST_CASE("format: every word of the list is found, others get a suggestion") {
  CHECK(builtin_dataset_formats().size() >= 4);
  for (const DatasetFormat& format : builtin_dataset_formats())
    CHECK(find_dataset_format(format.name) == &format);
  CHECK(find_dataset_format("idxx") == nullptr);
  const std::string misspelt =
      config_error([] { open_json(R"({"format": "cifar01", "path": "x"})"); });
  CHECK(contains(misspelt, "data.json:1:12: unknown value \"cifar01\"; did you mean \"cifar10\"?"));
  CHECK(!contains(misspelt, "unknown key"));
  CHECK(contains(config_error([] { open_json(R"({"path": "x"})"); }), "\"format\" is missing"));
  CHECK(contains(config_error([] { open_json(R"({"format": "idx"})"); }), "\"path\" is missing"));
  CHECK(contains(config_error([] {
                   open_json(R"({"format": "synthetic", "shape": [1, 2, 2], "classes": 2,
                                 "samples": 5, "test_sampels": 3})");
                 }),
                 "did you mean \"test_samples\"?"));
}

TEST_CASE("idx: raw and gzip files give the same samples") {
  TempFolder raw;
  TempFolder zipped;
  write_train(raw, images_20(), labels_20());
  write_file(zipped / (std::string(kTrainImages) + ".gz"), gzip(images_20()));
  write_file(zipped / (std::string(kTrainLabels) + ".gz"), gzip(labels_20()));
  for (const TempFolder* folder : {&raw, &zipped}) {
    const DatasetSplits splits = open_idx_folder(*folder);
    CHECK(splits.test == nullptr);
    CHECK(splits.train->size() == 20);
    CHECK(splits.train->classes() == 10);
    CHECK(splits.train->sample_shape() == Shape{1, 3, 4});
    Bytes pixels(12);
    std::int32_t label = -1;
    splits.train->read(13, pixels.data(), &label);
    CHECK(label == 3);
    for (std::size_t i = 0; i < 12; ++i) CHECK(pixels[i] == 13 * 12 + i);
  }
}

TEST_CASE("idx: a raw file wins over a compressed one, and content counts, not the name") {
  TempFolder folder;
  write_train(folder, images_20(), gzip(labels_20()));
  write_file(folder / (std::string(kTrainImages) + ".gz"), {1, 2, 3});
  CHECK(open_idx_folder(folder).train->size() == 20);
}

TEST_CASE("idx: test split, other names, number of classes") {
  TempFolder folder;
  write_train(folder, images_20(), labels_20());
  write_file(folder / kTestImages, idx_bytes({2, 3, 4}, counting(24, 256)));
  write_file(folder / kTestLabels, idx_bytes({2}, {0, 11}));
  const DatasetSplits splits = open_idx_folder(folder);
  CHECK(splits.test->size() == 2);
  CHECK(splits.test->classes() == 12);
  CHECK(splits.train->classes() == 12);
  CHECK(open_idx_folder(folder, R"(, "classes": 26)").train->classes() == 26);
  CHECK(contains(idx_error(folder, R"(, "classes": 11)"),
                 std::string("sample 1 of ") + (folder / kTestLabels).string() +
                     ": label 11, but the set has 11 classes (0 to 10)"));
  const DatasetSplits swapped =
      open_idx_folder(folder, R"(, "train_images": "t10k-images-idx3-ubyte",
        "train_labels": "t10k-labels-idx1-ubyte", "test_images": "train-images-idx3-ubyte",
        "test_labels": "train-labels-idx1-ubyte")");
  CHECK(swapped.train->size() == 2);
  CHECK(swapped.test->size() == 20);
  CHECK(contains(idx_error(folder, R"(, "test_images": "nothing")"),
                 "neither nothing nor nothing.gz is there"));

  // One class alone still makes a set of two: a single one cannot be learnt.
  write_file(folder / kTestLabels, idx_bytes({2}, {0, 0}));
  write_file(folder / kTrainLabels, idx_bytes({20}, Bytes(20, 0)));
  CHECK(open_idx_folder(folder).train->classes() == 2);
}

TEST_CASE("idx: labels out of range name the sample (B12)") {
  TempFolder folder;
  for (const int bad : {10, 255}) {
    Bytes labels = counting(20, 10);
    labels[17] = static_cast<std::uint8_t>(bad);
    write_train(folder, images_20(), idx_bytes({20}, labels));
    CHECK(idx_error(folder, R"(, "classes": 10)") ==
          "sample 17 of " + (folder / kTrainLabels).string() + ": label " + std::to_string(bad) +
              ", but the set has 10 classes (0 to 9)");
  }
}

TEST_CASE("idx: bad files are named, with what is wrong (B14)") {
  TempFolder folder;
  const auto bad_images = [&](const Bytes& images) {
    write_train(folder, images, labels_20());
    const std::string error = idx_error(folder);
    CHECK(contains(error, (folder / kTrainImages).string() + ": "));
    return error;
  };
  Bytes half = images_20();
  half.resize(half.size() / 2);
  CHECK(contains(bad_images(half),
                 "the header says [20, 3, 4], that is 240 bytes after it, but "
                 "the file has 112"));
  Bytes longer = images_20();
  longer.push_back(0);
  CHECK(contains(bad_images(longer), "but the file has 241"));
  CHECK(contains(bad_images({}), "the file is empty (0 bytes)"));
  CHECK(contains(bad_images({0, 0, 8, 3, 0, 0}), "the IDX header is cut short: 6 bytes of 16"));
  CHECK(contains(bad_images({0, 0}), "the IDX header is cut short: 2 bytes of 16"));
  Bytes magic = images_20();
  magic[3] = 2;
  CHECK(contains(bad_images(magic), "magic number 0x00000802, expected 0x00000803"));
  CHECK(contains(bad_images(labels_20()), "magic number 0x00000801 (that of a label file)"));
  CHECK(contains(bad_images({'h', 'e', 'l', 'l', 'o'}), "magic number 0x68656c6c"));
  CHECK(contains(bad_images(idx_bytes({0, 3, 4}, {})), "the set is empty"));
  CHECK(contains(bad_images(idx_bytes({20, 0, 4}, {})), "images without pixels"));
  write_train(folder, images_20(), idx_bytes({19}, counting(19, 10)));
  CHECK(contains(idx_error(folder),
                 "has 20 images, but " + (folder / kTrainLabels).string() + " has 19 labels"));
  write_train(folder, images_20(), labels_20());
  write_file(folder / kTestImages, idx_bytes({2, 4, 4}, counting(32, 256)));
  write_file(folder / kTestLabels, idx_bytes({2}, {0, 1}));
  CHECK(contains(idx_error(folder), "height and width must be the same"));
}

TEST_CASE("idx: a header that claims terabytes allocates nothing") {
  TempFolder folder;
  for (const bool is_zipped : {false, true}) {
    const auto write = [&](const Bytes& bytes) {
      write_train(folder, is_zipped ? gzip(bytes) : bytes, labels_20());
    };
    write(idx_bytes({0xFFFFFFFF, 1024, 1024}, counting(240, 256)));
    CHECK(contains(idx_error(folder), "but the file has "));
    write(idx_bytes({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, counting(240, 256)));
    CHECK(contains(idx_error(folder), "more than any file holds"));
  }
}

TEST_CASE("idx: truncated or damaged gzip files are errors that name the file") {
  TempFolder folder;
  Bytes noise(20 * 12);
  for (std::size_t i = 0; i < noise.size(); ++i)
    noise[i] = static_cast<std::uint8_t>(i * i * 31 / 7);
  const Bytes good = gzip(idx_bytes({20, 3, 4}, noise));
  write_train(folder, good, labels_20());
  REQUIRE(idx_error(folder).empty());
  for (const std::size_t length : {good.size() / 2, good.size() - 1, good.size() - 8}) {
    write_file(folder / kTrainImages, Bytes(good.begin(), good.begin() + std::ptrdiff_t(length)));
    CHECK(contains(idx_error(folder), (folder / kTrainImages).string() + ": the compressed data "
                                                                         "ends too early"));
  }
  // Behind the ten bytes of gzip's own header every flipped bit shows, at the latest in the sum,
  // but for those that fill up the last byte of the compressed data.
  std::size_t unseen = 0;
  for (std::size_t i = 10; i < good.size(); ++i) {
    Bytes flipped = good;
    flipped[i] ^= 0x10;
    write_file(folder / kTrainImages, flipped);
    const std::string error = idx_error(folder);
    if (!error.empty()) CHECK(contains(error, (folder / kTrainImages).string() + ": "));
    unseen += error.empty() ? 1 : 0;
  }
  CHECK(unseen <= 1);
  write_file(folder / kTrainImages, gzip({}));
  CHECK(contains(idx_error(folder), "cut short: 0 bytes"));
  Bytes longer = images_20();
  longer.push_back(1);
  write_file(folder / kTrainImages, gzip(longer));
  CHECK(contains(idx_error(folder), "but the file has more"));
}

TEST_CASE("missing folders and files: the path, what was looked for, what was found (B16)") {
  TempFolder folder;
  const auto open_path = [](const std::filesystem::path& path, const DatasetOptions& options) {
    return data_error(
        [&] { open_json(R"({"format": "idx", "path": )" + quoted(path) + "}", options); });
  };
  CHECK(contains(open_path(folder / "none", {}), (folder / "none").string() + ": no such folder"));
  const std::string relative = open_path("no/such", {.base_dir = folder.path()});
  CHECK(contains(relative, "no/such: no such folder (nor " + (folder / "no/such").string() + ")"));
  CHECK(contains(open_path(folder.path(), {}), "the folder is empty"));
  write_file(folder / "a.png", {1});
  write_file(folder / "b.png", {1});
  CHECK(contains(
      open_path(folder.path(), {}),
      folder.path().string() +
          ": neither train-images-idx3-ubyte nor "
          "train-images-idx3-ubyte.gz is there; found: a.png, b.png; name another file with "
          "\"train_images\""));
  CHECK(contains(open_path(folder / "a.png", {}), "this is not a folder"));
  std::filesystem::create_directory(folder / kTrainImages);
  write_file(folder / kTrainLabels, labels_20());
  CHECK(contains(open_path(folder.path(), {}),
                 (folder / kTrainImages).string() + ": this is a folder; a file was expected"));
}

TEST_CASE("relative paths: the config's folder first, then the working directory") {
  TempFolder folder;
  std::filesystem::create_directory(folder / "set");
  write_file(folder / ("set/" + std::string(kTrainImages)), images_20());
  write_file(folder / ("set/" + std::string(kTrainLabels)), labels_20());
  const DatasetOptions options{.base_dir = folder.path()};
  CHECK(open_json(R"({"format": "idx", "path": "set"})", options).train->size() == 20);
  CHECK(open_json(R"({"format": "idx", "path": "data/samples/fashion-mnist"})", options)
            .train->size() == 10000);
}

TEST_CASE("the bundled sample is balanced") {
  const DatasetSplits splits =
      open_json(R"({"format": "idx", "path": "data/samples/fashion-mnist"})");
  CHECK(splits.train->sample_shape() == Shape{1, 28, 28});
  CHECK(splits.train->classes() == 10);
  CHECK(splits.train->size() == 10000);
  CHECK(splits.test->size() == 1500);
  for (const Dataset* set : {splits.train.get(), splits.test.get()}) {
    std::vector<std::int64_t> counts(10);
    Bytes pixels(784);
    std::int32_t label = 0;
    for (std::int64_t i = 0; i < set->size(); ++i) {
      set->read(i, pixels.data(), &label);
      ++counts[static_cast<std::size_t>(label)];
    }
    CHECK(counts == std::vector<std::int64_t>(10, set->size() / 10));
  }
}

void write_cifar10(const TempFolder& folder) {
  for (int i = 1; i <= 5; ++i)
    write_file(folder / ("data_batch_" + std::to_string(i) + ".bin"),
               cifar_bytes(static_cast<std::size_t>(i), {10}));
  write_file(folder / "test_batch.bin", cifar_bytes(12, {10}));
}

TEST_CASE("cifar10: files in order, planar pixels, errors that name file and sample") {
  TempFolder folder;
  write_cifar10(folder);
  const std::string text = R"({"format": "cifar10", "path": )" + quoted(folder.path()) + "}";
  const DatasetSplits splits = open_json(text);
  CHECK(splits.train->size() == 15);
  CHECK(splits.test->size() == 12);
  CHECK(splits.train->classes() == 10);
  CHECK(splits.train->sample_shape() == Shape{3, 32, 32});
  Bytes pixels(3072);
  std::int32_t label = -1;
  splits.train->read(5, pixels.data(), &label);  // record 2 of the third file
  CHECK(label == 2);
  const Bytes third = cifar_bytes(3, {10});
  CHECK(pixels == Bytes(third.end() - 3072, third.end()));

  const auto error = [&] { return data_error([&] { open_json(text); }); };
  const std::string fourth = (folder / "data_batch_4.bin").string();
  Bytes bad = cifar_bytes(4, {10});
  bad[3 * 3073] = 10;
  write_file(fourth, bad);
  CHECK(error() == "sample 3 of " + fourth + ": label 10, but the set has 10 classes (0 to 9)");
  bad.resize(bad.size() / 2);
  bad.pop_back();
  write_file(fourth, bad);
  CHECK(contains(error(), fourth + ": 6145 bytes are no whole number of records of 3073 bytes (1 "
                                   "records and 3072 bytes)"));
  write_file(fourth, {});
  CHECK(contains(error(), fourth + ": the file is empty (0 bytes)"));
  write_file(fourth, gzip({}));
  CHECK(contains(error(), fourth + ": 0 bytes are no whole number"));
  std::filesystem::remove(fourth);
  CHECK(contains(error(),
                 "neither data_batch_4.bin nor data_batch_4.bin.gz is there; found: "
                 "data_batch_1.bin, "));
  write_file(fourth + ".gz", gzip(cifar_bytes(4, {10})));
  CHECK(open_json(text).train->size() == 15);
}

TEST_CASE("cifar100: fine and coarse labels, both checked") {
  TempFolder folder;
  write_file(folder / "train.bin", cifar_bytes(45, {20, 100}));
  write_file(folder / "test.bin", cifar_bytes(2, {20, 100}));
  const auto open = [&](const std::string& more) {
    return open_json(R"({"format": "cifar100", "path": )" + quoted(folder.path()) + more + "}");
  };
  Bytes pixels(3072);
  std::int32_t label = -1;
  open("").train->read(41, pixels.data(), &label);
  CHECK(label == 41);
  CHECK(open("").train->classes() == 100);
  const DatasetSplits coarse = open(R"(, "label": "coarse")");
  coarse.train->read(41, pixels.data(), &label);
  CHECK(label == 1);
  CHECK(coarse.test->classes() == 20);
  CHECK(contains(config_error([&] { open(R"(, "label": "corse")"); }), "did you mean \"coarse\"?"));
  Bytes bad = cifar_bytes(45, {20, 100});
  bad[17 * 3074] = 20;  // a coarse label, though fine ones are learnt
  write_file(folder / "train.bin", bad);
  CHECK(data_error([&] { open(""); }) == "sample 17 of " + (folder / "train.bin").string() +
                                             ": label 20, but the set has 20 classes (0 to 19)");
}

}  // namespace
}  // namespace layup
