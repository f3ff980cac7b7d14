// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: a value is a pure function of (key, counter), so that it does not
// depend on order, threads, micro-batches, layouts or on whether it is computed again.
//
// Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11:
// Philox4x32-10.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace layup {

using Philox = std::array<std::uint32_t, 4>;

constexpr Philox philox(std::uint64_t key, std::uint64_t counter_high, std::uint64_t counter_low) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32U);
  Philox c = {
      static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32U),
      static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32U)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = 0xD2511F53ULL * c[0];
    const std::uint64_t product1 = 0xCD9E8D57ULL * c[2];
    c = {static_cast<std::uint32_t>(product1 >> 32U) ^ c[1] ^ k0,
         static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32U) ^ c[3] ^ k1,
         static_cast<std::uint32_t>(product0)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c;
}

// A word in [0, 1), exact in float32 (24 bits).
constexpr float to_unit_float(std::uint32_t word) {
  return static_cast<float>(word >> 8U) * 0x1.0p-24F;
}

// splitmix64's finaliser: turns structured numbers into independent keys.
constexpr std::uint64_t mix(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

// FNV-1a, 64 bits: stable names for layers and parameters; also the weights hash.
constexpr std::uint64_t kFnvOffset = 0xCBF29CE484222325ULL;
constexpr std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash = kFnvOffset) {
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return hash;
}

}  // namespace layup
