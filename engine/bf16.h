// SPDX-License-Identifier: Apache-2.0
// bfloat16: the upper half of a float32, so the same range with 8 bits of significand.
#pragma once

#include <bit>
#include <cstdint>

namespace layup {

struct Bf16 {
  std::uint16_t bits;

  bool operator==(const Bf16&) const = default;
};

inline float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16U);
}

// To nearest, ties to even; a NaN stays one.
inline Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return {static_cast<std::uint16_t>(bits >> 16U | 0x40U)};
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16U & 1U)) >> 16U)};
}

}  // namespace layup
