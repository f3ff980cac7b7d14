// SPDX-License-Identifier: Apache-2.0
// The IDX format of MNIST and its successors (EMNIST, Fashion-MNIST, KMNIST, QMNIST).
//
//   images  magic 0x00000803, then N, H, W, then N*H*W bytes   -> samples [1, H, W]
//   labels  magic 0x00000801, then N, then N bytes
//
// All words are 32 bits, big-endian. Each file may be gzip-compressed.
//
// Source: LeCun, Cortes and Burges, "The MNIST database of handwritten digits", file formats.
// Keys: path; train_images, train_labels, test_images, test_labels (file names, relative to path);
// classes (default: one more than the largest label of both splits, at least 2).
// Errors: DataError if the magic is another one, the sizes of header and file differ, the numbers
// of images and labels differ, a set is empty, a label is out of range, the splits' shapes differ.
#include <algorithm>
#include <optional>

#include "data/data_file.h"
#include "data/dataset.h"
#include "data/memory_dataset.h"
#include "engine/error.h"

namespace layup {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kImageMagic = 0x803;
constexpr std::uint32_t kLabelMagic = 0x801;

struct IdxArray {
  fs::path path;
  Shape dims;
  std::vector<std::uint8_t> bytes;
};

std::uint32_t big_endian(const std::uint8_t* bytes) {
  return std::uint32_t{bytes[0]} << 24U | std::uint32_t{bytes[1]} << 16U |
         std::uint32_t{bytes[2]} << 8U | std::uint32_t{bytes[3]};
}

std::string hexadecimal(std::uint32_t word) {
  std::string text = "0x";
  for (int shift = 28; shift >= 0; shift -= 4)
    text += "0123456789abcdef"[word >> static_cast<unsigned>(shift) & 15U];
  return text;
}

std::string meaning(std::uint32_t magic) {
  if (magic == kImageMagic) return " (that of an image file)";
  if (magic == kLabelMagic) return " (that of a label file)";
  return "";
}

Shape read_header(DataFile& file, std::uint32_t magic) {
  const auto num_dims = static_cast<std::int64_t>(magic & 0xFFU);
  const std::vector<std::uint8_t> header = file.read(4 + 4 * num_dims);
  const auto header_bytes = static_cast<std::int64_t>(header.size());
  const std::uint32_t found = header_bytes < 4 ? 0 : big_endian(header.data());
  if (header_bytes >= 4 && found != magic)
    file.fail("magic number " + hexadecimal(found) + meaning(found) + ", expected " +
              hexadecimal(magic) + meaning(magic));
  if (header_bytes < 4 + 4 * num_dims)
    file.fail("the IDX header is cut short: " + std::to_string(header_bytes) + " bytes of " +
              std::to_string(4 + 4 * num_dims));
  Shape dims;
  for (std::int64_t i = 0; i < num_dims; ++i) dims.push_back(big_endian(header.data() + 4 + 4 * i));
  return dims;
}

IdxArray read_idx(const fs::path& path, std::uint32_t magic) {
  DataFile file(path);
  IdxArray array{path, read_header(file, magic), {}};
  const std::string header_says = "the header says " + to_string(array.dims);
  if (array.dims[0] == 0) file.fail("the set is empty: " + header_says);
  for (const std::int64_t dim : array.dims)
    if (dim == 0) file.fail("images without pixels: " + header_says);
  std::int64_t expected_bytes = 0;
  try {
    expected_bytes = num_elements(array.dims);
  } catch (const GraphError&) {
    file.fail(header_says + ", which is more than any file holds");
  }
  const std::int64_t header_bytes = 4 + 4 * static_cast<std::int64_t>(array.dims.size());
  const auto wrong_size = [&](const std::string& found) {
    file.fail(header_says + ", that is " + std::to_string(expected_bytes) +
              " bytes after it, but the file has " + found);
  };
  // Before anything is allocated: a damaged header can ask for terabytes.
  const std::int64_t most_bytes = file.most_content_bytes() - header_bytes;
  if (!file.is_compressed() && most_bytes != expected_bytes) wrong_size(std::to_string(most_bytes));
  if (expected_bytes > most_bytes) wrong_size("at most " + std::to_string(most_bytes));
  array.bytes = file.read(expected_bytes);
  const auto found_bytes = static_cast<std::int64_t>(array.bytes.size());
  if (found_bytes < expected_bytes) wrong_size(std::to_string(found_bytes));
  if (!file.at_end()) wrong_size("more");
  return array;
}

struct Split {
  IdxArray images;
  IdxArray labels;
};

Split read_split(const fs::path& images, const fs::path& labels) {
  Split split{read_idx(images, kImageMagic), read_idx(labels, kLabelMagic)};  // in this order
  if (split.images.dims[0] != split.labels.dims[0])
    throw DataError(images.string() + " has " + std::to_string(split.images.dims[0]) +
                    " images, but " + labels.string() + " has " +
                    std::to_string(split.labels.dims[0]) + " labels");
  return split;
}

std::int64_t largest_label(const Split& split) {
  return *std::max_element(split.labels.bytes.begin(), split.labels.bytes.end());
}

std::unique_ptr<Dataset> make_dataset(Split split, std::int64_t classes) {
  std::int64_t sample = 0;
  for (const std::uint8_t label : split.labels.bytes)
    check_label(label, classes, sample++, split.labels.path);
  const Shape shape = {1, split.images.dims[1], split.images.dims[2]};
  return std::make_unique<MemoryDataset>(shape, classes, std::move(split.images.bytes),
                                         std::move(split.labels.bytes));
}

DatasetSplits open_idx(JsonReader& data, const DatasetOptions& options) {
  const std::size_t errors_before = data.errors().lines().size();
  const std::string path = data.require_string("path");
  const bool names_test = data.has("test_images") || data.has("test_labels");
  const std::string train_images = data.get_string("train_images", "train-images-idx3-ubyte");
  const std::string train_labels = data.get_string("train_labels", "train-labels-idx1-ubyte");
  const std::string test_images = data.get_string("test_images", "t10k-images-idx3-ubyte");
  const std::string test_labels = data.get_string("test_labels", "t10k-labels-idx1-ubyte");
  const std::int64_t given_classes = data.get_int("classes", 0, {.min = 2, .max = 1 << 20});
  if (data.errors().lines().size() > errors_before) return {};

  const fs::path folder =
      find_data_folder(path, options.base_dir, "a folder with " + train_images + " and its like");
  const auto split = [&](const std::string& images, const std::string& labels,
                         const std::string& which) {
    const auto hint = [&](const char* what) {
      return "name another file with \"" + which + "_" + what + "\"";
    };
    const fs::path images_path = require_data_file(folder, images, hint("images"));
    return read_split(images_path, require_data_file(folder, labels, hint("labels")));
  };
  Split train = split(train_images, train_labels, "train");
  std::optional<Split> test;
  if (names_test || find_data_file(folder, test_images) || find_data_file(folder, test_labels)) {
    test = split(test_images, test_labels, "test");
    if (test->images.dims[1] != train.images.dims[1] ||
        test->images.dims[2] != train.images.dims[2])
      throw DataError(test->images.path.string() + " holds images " + to_string(test->images.dims) +
                      ", but " + train.images.path.string() + " holds " +
                      to_string(train.images.dims) + "; height and width must be the same");
  }
  std::int64_t classes = given_classes;
  if (classes == 0) {
    classes = std::max<std::int64_t>(2, 1 + largest_label(train));
    if (test) classes = std::max(classes, 1 + largest_label(*test));
  }
  DatasetSplits splits;
  splits.train = make_dataset(std::move(train), classes);
  if (test) splits.test = make_dataset(std::move(*test), classes);
  return splits;
}

}  // namespace

DatasetFormat idx_format() { return {"idx", open_idx}; }

}  // namespace layup
