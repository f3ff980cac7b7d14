// SPDX-License-Identifier: Apache-2.0
// One block of channels as a vector: 16 or 8 floats, by the compiler's vector types. In memory they
// are floats or bf16.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "engine/bf16.h"
#include "engine/shape.h"

// Functions with vectors as arguments are inlined; no ABI is at stake.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace layup::cpu {

template <int kBlock>
struct VectorTypes;
template <>
struct VectorTypes<16> {
  typedef float Float __attribute__((vector_size(64)));
  typedef float HalfFloat __attribute__((vector_size(32)));
  typedef double HalfDouble __attribute__((vector_size(64)));
  typedef std::int32_t Int __attribute__((vector_size(64)));
  typedef std::uint32_t Word __attribute__((vector_size(64)));
  typedef std::uint16_t Half __attribute__((vector_size(32)));
  typedef std::uint8_t Byte __attribute__((vector_size(16)));
};
template <>
struct VectorTypes<8> {
  typedef float Float __attribute__((vector_size(32)));
  typedef float HalfFloat __attribute__((vector_size(16)));
  typedef double HalfDouble __attribute__((vector_size(32)));
  typedef std::int32_t Int __attribute__((vector_size(32)));
  typedef std::uint32_t Word __attribute__((vector_size(32)));
  typedef std::uint16_t Half __attribute__((vector_size(16)));
  typedef std::uint8_t Byte __attribute__((vector_size(8)));
};

// A block in double: two vectors, since the compiler keeps one of twice a register's size in
// memory.
template <int kBlock>
struct DoubleVector {
  typename VectorTypes<kBlock>::HalfDouble low, high;

  DoubleVector& operator+=(const DoubleVector& other) {
    low += other.low;
    high += other.high;
    return *this;
  }
  DoubleVector operator/(double divisor) const { return {low / divisor, high / divisor}; }
  double operator[](int lane) const {
    constexpr int kHalf = kBlock / 2;
    return lane < kHalf ? low[lane] : high[lane - kHalf];
  }
};

template <int kBlock>
struct Vectors : VectorTypes<kBlock> {
  using typename VectorTypes<kBlock>::Float;
  using Double = DoubleVector<kBlock>;
  using typename VectorTypes<kBlock>::Int;
  using typename VectorTypes<kBlock>::Word;
  using typename VectorTypes<kBlock>::Half;
  using typename VectorTypes<kBlock>::Byte;
  using typename VectorTypes<kBlock>::HalfFloat;
  using typename VectorTypes<kBlock>::HalfDouble;

  static Float load(const float* from) {
    Float value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  static Float load(const Bf16* from) {
    Half half;
    std::memcpy(&half, from, sizeof(half));
    return std::bit_cast<Float>(words_of(half) << 16U);
  }
  static Word words_of(const Half& half) {
#ifdef __AVX512F__  // one instruction; the compiler takes five (and warns of the form without mask)
    if constexpr (kBlock == 16)
      return std::bit_cast<Word>(_mm512_maskz_cvtepu16_epi32(0xFFFF, std::bit_cast<__m256i>(half)));
#endif
    return __builtin_convertvector(half, Word);
  }
  static void store(float* to, const Float& value) { std::memcpy(to, &value, sizeof(value)); }
  static void store(Bf16* to, const Float& value) {  // rounds as to_bf16
    const Word bits = std::bit_cast<Word>(value);
    const Word rounded = (bits + 0x7FFFU + (bits >> 16U & 1U)) >> 16U;
    const Word kept = value != value ? (bits >> 16U | 0x40U) : rounded;
    const Half half = __builtin_convertvector(kept, Half);
    std::memcpy(to, &half, sizeof(half));
  }
  static Double widen(const Float& value) {
    HalfFloat halves[2];
    std::memcpy(halves, &value, sizeof(halves));
    return {__builtin_convertvector(halves[0], HalfDouble),
            __builtin_convertvector(halves[1], HalfDouble)};
  }
  static Float narrow(const Double& value) {
    const HalfFloat halves[2] = {__builtin_convertvector(value.low, HalfFloat),
                                 __builtin_convertvector(value.high, HalfFloat)};
    Float whole;
    std::memcpy(&whole, halves, sizeof(whole));
    return whole;
  }
  static Float sqrt(const Float& value) {
#ifdef __AVX512F__
    // With a mask of all lanes: GCC 12 warns of the one without (its PR 105593).
    if constexpr (kBlock == 16) return _mm512_maskz_sqrt_ps(0xFFFF, value);
#endif
    Float root{};
    for (int lane = 0; lane < kBlock; ++lane) root[lane] = std::sqrt(value[lane]);
    return root;
  }
  // 0 where value <= 0; NaN stays.
  static Float relu(const Float& value) { return value <= 0.0F ? Float{} : value; }
};

// One element, for what is left over behind the last whole vector.
inline float load_one(const float* from) { return *from; }
inline float load_one(const Bf16* from) { return to_float(*from); }
inline void store_one(float* to, float value) { *to = value; }
inline void store_one(Bf16* to, float value) { *to = to_bf16(value); }

// [N, C, H, W] in blocks of channels.
struct BlockedImage {
  std::int64_t batch = 0;
  std::int64_t channels = 0;
  std::int64_t blocks = 0;
  std::int64_t pixels = 0;  // H * W

  BlockedImage(const Shape& shape, std::int64_t block)
      : batch(shape[0]),
        channels(shape[1]),
        blocks((shape[1] + block - 1) / block),
        pixels(shape[2] * shape[3]) {}
  // Elements before a sample's block.
  template <int kBlock>
  std::int64_t offset(std::int64_t n, std::int64_t block) const {
    return (n * blocks + block) * pixels * kBlock;
  }
};

// The values of a block's channels from an array by channel; 0 beyond the last one.
template <int kBlock>
typename Vectors<kBlock>::Float load_channels(const float* from, std::int64_t block,
                                              std::int64_t channels) {
  if ((block + 1) * kBlock <= channels) return Vectors<kBlock>::load(from + block * kBlock);
  float values[kBlock] = {};
  const std::int64_t count = channels - block * kBlock;
  for (std::int64_t i = 0; i < count; ++i) values[i] = from[block * kBlock + i];
  return Vectors<kBlock>::load(values);
}

}  // namespace layup::cpu
