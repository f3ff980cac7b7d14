// SPDX-License-Identifier: Apache-2.0
// What reader and writer of safetensors must agree on. Private to engine/.
#pragma once

#include <zlib.h>

#include <bit>
#include <string>
#include <string_view>

#include "engine/safetensors.h"

namespace layup {

static_assert(std::endian::native == std::endian::little, "tensor data is written as it lies");

constexpr int kLengthBytes = 8;
constexpr std::int64_t kDataAlignment = 64;
constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::string_view kChecksumKey = "layup.crc32";
// How the checksum stands in a header of ours. Quotes inside JSON strings are escaped, so no name
// or text can look like it.
constexpr std::string_view kChecksumPrefix = "\"layup.crc32\":\"";
constexpr std::size_t kChecksumDigits = 8;

constexpr const char* stored_name(StoredType type) {
  constexpr const char* names[] = {"F32", "I64", "I32", "U8"};
  return names[static_cast<int>(type)];
}

inline std::uint32_t crc32_of(std::uint32_t crc, const void* data, std::int64_t bytes) {
  if (bytes == 0) return crc;  // zlib takes a null pointer as a reset
  return static_cast<std::uint32_t>(
      ::crc32_z(crc, static_cast<const Bytef*>(data), static_cast<z_size_t>(bytes)));
}

inline std::string checksum_text(std::uint32_t crc) {
  std::string text(kChecksumDigits, '0');
  for (std::size_t i = 0; i < kChecksumDigits; ++i)
    text[i] = "0123456789abcdef"[(crc >> (28 - 4 * i)) & 15U];
  return text;
}

}  // namespace layup
