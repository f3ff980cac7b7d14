// SPDX-License-Identifier: Apache-2.0
// Small data sets for tests, on disk and in memory, and opening them from JSON text.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "engine/error.h"

namespace layup::test {

using Bytes = std::vector<std::uint8_t>;

inline void write_file(const std::filesystem::path& path, const Bytes& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

inline Bytes gzip(const Bytes& bytes) {
  z_stream stream{};
  // 16 more than the window's 15 bits asks for gzip's header and checksum.
  if (deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("deflateInit2");
  Bytes out(deflateBound(&stream, bytes.size()) + 64);
  stream.next_in = const_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  const int code = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (code != Z_STREAM_END) throw std::runtime_error("deflate");
  return out;
}

// An IDX file: magic 0x800 + number of dimensions, the dimensions, the content.
inline Bytes idx_bytes(const std::vector<std::uint32_t>& dims, const Bytes& content) {
  Bytes bytes = {0, 0, 8, static_cast<std::uint8_t>(dims.size())};
  for (const std::uint32_t dim : dims)
    for (const unsigned shift : {24U, 16U, 8U, 0U})
      bytes.push_back(static_cast<std::uint8_t>(dim >> shift));
  bytes.insert(bytes.end(), content.begin(), content.end());
  return bytes;
}

// 0, 1, 2, ... modulo `modulus`.
inline Bytes counting(std::size_t count, unsigned modulus) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(i % modulus);
  return bytes;
}

// `records` CIFAR records; label bytes count up modulo their classes, pixels count up.
inline Bytes cifar_bytes(std::size_t records, const std::vector<unsigned>& label_classes) {
  Bytes bytes;
  for (std::size_t record = 0; record < records; ++record) {
    for (const unsigned classes : label_classes)
      bytes.push_back(static_cast<std::uint8_t>(record % classes));
    for (std::size_t i = 0; i < 3072; ++i) bytes.push_back(static_cast<std::uint8_t>(i + record));
  }
  return bytes;
}

inline std::string quoted(const std::filesystem::path& path) { return Json(path.string()).dump(); }

// Opens "data" written as JSON. Throws ConfigError for errors of keys (unknown ones included) and
// what open_dataset throws.
inline DatasetSplits open_json(const std::string& text, const DatasetOptions& options = {}) {
  const JsonNode node = parse_json(text, "data.json");
  JsonErrors errors("data.json");
  JsonReader reader(node, "/data", errors);
  DatasetSplits splits = open_dataset(reader, options);
  reader.finish();
  errors.throw_if_any();
  return splits;
}

// The text of the DataError that `action` throws; "" if it throws none.
inline std::string data_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}
inline std::string config_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// In memory: pixel p of sample i is (7 i + p) mod 256, its label i mod classes. Reading
// `bad_sample` throws; `bad_label_sample` has the label `bad_label`.
class CountingDataset final : public Dataset {
 public:
  CountingDataset(std::int64_t samples, Shape shape, std::int64_t classes = 10)
      : samples_(samples), shape_(std::move(shape)), classes_(classes) {}

  std::int64_t size() const override { return samples_; }
  std::int64_t classes() const override { return classes_; }
  Shape sample_shape() const override { return shape_; }
  void read(std::int64_t index, std::uint8_t* pixels, std::int32_t* label) const override {
    if (index == bad_sample) throw DataError("sample " + std::to_string(index) + " is unreadable");
    for (std::int64_t p = 0; p < num_elements(shape_); ++p)
      pixels[p] = static_cast<std::uint8_t>(7 * index + p);
    *label = index == bad_label_sample ? bad_label : static_cast<std::int32_t>(index % classes_);
  }

  std::int64_t bad_sample = -1;
  std::int64_t bad_label_sample = -1;
  std::int32_t bad_label = 0;

 private:
  std::int64_t samples_;
  Shape shape_;
  std::int64_t classes_;
};

}  // namespace layup::test
