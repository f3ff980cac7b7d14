// SPDX-License-Identifier: Apache-2.0
// Reads and writes the safetensors format: named tensors and a few strings in one file.
//
//   8 bytes   length of the header, little-endian
//   header    JSON {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
//             "__metadata__": {"key": "text"}}, padded with spaces
//   data      little-endian, offsets from its start, without holes or overlaps
//
// Format: github.com/huggingface/safetensors, "Format". Ours: data starts at a multiple of 64
// bytes, and the metadata has "layup.crc32", the CRC-32 (8 hexadecimal digits) of header and data
// where the digits themselves count as zeros. Files without it are read, too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/shape.h"

namespace layup {

// What a file may hold; wider than the engine's DType, since other programs store counters as I64.
enum class StoredType : std::uint8_t { f32, i64, i32, u8 };

constexpr std::int64_t size_bytes(StoredType type) {
  return type == StoredType::u8 ? 1 : type == StoredType::i64 ? 8 : 4;
}

// A view: owns nothing.
struct TensorBlob {
  std::string name;
  StoredType type = StoredType::f32;
  Shape shape;
  const void* data = nullptr;  // in a file not written by us perhaps unaligned: copy, don't cast
  std::int64_t bytes = 0;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

// Writes the tensors in their order, without a copy of the data in memory, and replaces `path` in
// one step (atomic_file.h). Throws DataError: I/O, names that are not unique or not UTF-8.
void write_safetensors(const std::filesystem::path& path, const Metadata& metadata,
                       std::span<const TensorBlob> tensors);

// The data of the tensor of this number, good until the next call. Each is asked for twice, in
// order: for the checksum, then for the file.
using TensorSource = std::function<const void*(std::size_t)>;
// Likewise with data from `source`, so that they need not all be in memory at one time.
void write_safetensors(const std::filesystem::path& path, const Metadata& metadata,
                       std::span<const TensorBlob> tensors, const TensorSource& source);

namespace detail {
struct Unmap {
  std::int64_t bytes = 0;
  void operator()(const void* address) const;
};
}  // namespace detail

// A file mapped into memory; move-only, views into it live as long as it does.
class SafetensorsFile {
 public:
  // Checks everything, the checksum included, before it returns. Throws DataError naming the file
  // and what is wrong with it.
  static SafetensorsFile open(const std::filesystem::path& path);

  const Metadata& metadata() const { return metadata_; }
  const std::string* find_metadata(std::string_view key) const;        // null if absent
  const std::vector<TensorBlob>& tensors() const { return tensors_; }  // in the header's order
  std::vector<std::string> names() const;
  const TensorBlob* find(std::string_view name) const;  // null if absent
  // Gives the memory of data that have been read back to the system; they can be read again.
  static void drop(const TensorBlob& tensor);

 private:
  std::unique_ptr<const void, detail::Unmap> mapping_;
  Metadata metadata_;
  std::vector<TensorBlob> tensors_;
  std::unordered_map<std::string, std::size_t> index_;
};

}  // namespace layup
