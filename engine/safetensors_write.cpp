// SPDX-License-Identifier: Apache-2.0
#include <unordered_set>

#include "engine/atomic_file.h"
#include "engine/error.h"
#include "engine/json_node.h"
#include "engine/safetensors_format.h"

namespace layup {
namespace {

std::string quoted(const std::filesystem::path& path, const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw DataError("cannot write " + path.string() + ": a name or text in it is not UTF-8");
  }
}

void check_names(const std::filesystem::path& path, std::span<const TensorBlob> tensors) {
  std::unordered_set<std::string_view> seen;
  for (const TensorBlob& tensor : tensors) {
    LAYUP_ASSERT(tensor.bytes ==
                 checked_multiply(num_elements(tensor.shape), size_bytes(tensor.type)));
    if (tensor.name == kMetadataKey || !seen.insert(tensor.name).second)
      throw DataError("cannot write " + path.string() + ": two entries are named \"" + tensor.name +
                      "\"");
  }
}

std::string shape_text(const Shape& shape) {
  std::string text;
  for (const std::int64_t dimension : shape)
    text += (text.empty() ? "" : ",") + std::to_string(dimension);
  return "[" + text + "]";
}

// With zeros for the checksum. Text by hand, since an ordered JSON object takes quadratic time.
std::string make_header(const std::filesystem::path& path, const Metadata& metadata,
                        std::span<const TensorBlob> tensors) {
  std::string header = "{\"" + std::string(kMetadataKey) + "\":{" + std::string(kChecksumPrefix) +
                       std::string(kChecksumDigits, '0') + "\"";
  for (const auto& [key, text] : metadata) {
    LAYUP_ASSERT(key != kChecksumKey);
    header += "," + quoted(path, key) + ":" + quoted(path, text);
  }
  header += "}";
  std::int64_t offset = 0;
  for (const TensorBlob& tensor : tensors) {
    const std::int64_t end = checked_add(offset, tensor.bytes);
    header += "," + quoted(path, tensor.name) + ":{\"dtype\":\"" + stored_name(tensor.type) +
              "\",\"shape\":" + shape_text(tensor.shape) + ",\"data_offsets\":[" +
              std::to_string(offset) + "," + std::to_string(end) + "]}";
    offset = end;
  }
  header += "}";
  const auto length = static_cast<std::int64_t>(header.size());
  header.append(round_up(kLengthBytes + length, kDataAlignment) - kLengthBytes - length, ' ');
  if (static_cast<std::int64_t>(header.size()) > kMaxHeaderBytes)
    throw DataError("cannot write " + path.string() + ": its header would pass 100 MB");
  return header;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const Metadata& metadata,
                       std::span<const TensorBlob> tensors) {
  write_safetensors(path, metadata, tensors, [&](std::size_t i) { return tensors[i].data; });
}

void write_safetensors(const std::filesystem::path& path, const Metadata& metadata,
                       std::span<const TensorBlob> tensors, const TensorSource& source) {
  check_names(path, tensors);
  std::string header = make_header(path, metadata, tensors);
  std::uint32_t crc = crc32_of(0, header.data(), static_cast<std::int64_t>(header.size()));
  std::int64_t total = kLengthBytes + static_cast<std::int64_t>(header.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    crc = crc32_of(crc, source(i), tensors[i].bytes);
    total = checked_add(total, tensors[i].bytes);
  }
  const std::string digits = checksum_text(crc);
  header.replace(header.find(kChecksumPrefix) + kChecksumPrefix.size(), digits.size(), digits);

  AtomicFile file(path, total);
  unsigned char length[kLengthBytes];
  for (int i = 0; i < kLengthBytes; ++i)
    length[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  file.write(length, kLengthBytes);
  file.write(header.data(), static_cast<std::int64_t>(header.size()));
  for (std::size_t i = 0; i < tensors.size(); ++i) file.write(source(i), tensors[i].bytes);
  file.commit();
}

}  // namespace layup
