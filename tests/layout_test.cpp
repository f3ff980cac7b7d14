// SPDX-License-Identifier: Apache-2.0
// Layouts, and bf16 in them: positions, padding, rounding.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/bf16.h"
#include "engine/layout.h"
#include "layers/cpu/vector.h"
#include "tests/support/random_graph.h"

namespace layup {
namespace {

// Rounding, the slow way: of all bf16 values around it the nearest, ties to an even significand.
Bf16 nearest(float value) {
  const auto upper = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16U);
  Bf16 best{upper};
  double least = std::abs(double{value} - to_float(best));
  const Bf16 next{static_cast<std::uint16_t>(upper + 1)};  // away from zero
  // The first value that is too large counts as the next power of two.
  const double beyond =
      std::isinf(to_float(next)) ? std::copysign(std::ldexp(1.0, 128), value) : to_float(next);
  const double other = std::abs(beyond - double{value});
  if (other < least || (other == least && (upper & 1U) != 0)) best = next;
  return best;
}

std::vector<float> samples() {
  test::RandomSource random(3);
  std::vector<float> values = {0.0F,           -0.0F,  1.0F,
                               1.00390625F,  // a tie: down to even
                               1.01171875F,  // a tie: up to even
                               -1.01171875F,
                               3.4e38F,  // to infinity
                               -3.4028235e38F, 1e-45F, std::numeric_limits<float>::infinity()};
  while (values.size() < 20000) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random.bits() >> 32U));
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

TEST_CASE("bf16: rounds to the nearest, ties to even") {
  for (const float value : samples()) {
    CAPTURE(value);
    if (std::isfinite(value)) CHECK(to_bf16(value) == nearest(value));
  }
  CHECK(to_float(to_bf16(1.00390625F)) == 1.0F);
  CHECK(to_float(to_bf16(1.01171875F)) == 1.015625F);
  CHECK(to_float(to_bf16(std::numeric_limits<float>::infinity())) ==
        std::numeric_limits<float>::infinity());
  // Not-a-numbers whose upper half alone would be infinity or, rounded, a number.
  for (const std::uint32_t bits : {0x7F800001U, 0xFFFFFFFFU, 0x7FC00000U})
    CHECK(std::isnan(to_float(to_bf16(std::bit_cast<float>(bits)))));
}

TEST_CASE("bf16: vectors load and store what single elements do") {
  std::vector<float> values = samples();
  values[17] = std::numeric_limits<float>::quiet_NaN();
  const auto check = [&]<int kBlock>(std::integral_constant<int, kBlock>) {
    using V = cpu::Vectors<kBlock>;
    for (std::size_t i = 0; i + kBlock <= values.size(); i += kBlock) {
      Bf16 stored[kBlock];
      float loaded[kBlock];
      V::store(stored, V::load(values.data() + i));
      V::store(loaded, V::load(stored));
      for (std::size_t lane = 0; lane < kBlock; ++lane) {
        const Bf16 expected = to_bf16(values[i + lane]);
        CHECK(stored[lane] == expected);
        CHECK(std::bit_cast<std::uint32_t>(loaded[lane]) ==
              std::bit_cast<std::uint32_t>(to_float(expected)));
      }
    }
  };
  check(std::integral_constant<int, 16>());
  check(std::integral_constant<int, 8>());
}

TEST_CASE("layout: positions, padding and bytes of blocks of channels") {
  const Shape shape = {2, 5, 3, 2};
  std::vector<float> plain(60);
  for (std::size_t i = 0; i < plain.size(); ++i) plain[i] = static_cast<float>(i) + 0.25F;
  Layout layout = blocked_channels(shape, 4);
  REQUIRE(num_elements(layout, shape) == 2 * 8 * 6);
  CHECK(element_bytes(layout, DType::f32) == 4);
  CHECK(to_string(layout) == "[2, 5, 3, 2] by 48 24 8 4 in blocks of 4 d1");
  std::vector<float> placed(96, -1);
  from_plain(layout, shape, plain.data(), placed.data());
  for (std::size_t n = 0; n < 2; ++n)
    for (std::size_t c = 0; c < 8; ++c)
      for (std::size_t i = 0; i < 6; ++i)
        CHECK(placed[n * 48 + c / 4 * 24 + i * 4 + c % 4] ==
              (c < 5 ? plain[(n * 5 + c) * 6 + i] : 0));

  layout.element = Element::bf16;
  CHECK(element_bytes(layout, DType::f32) == 2);
  CHECK(to_string(layout) == "[2, 5, 3, 2] by 48 24 8 4 in blocks of 4 d1 as bf16");
  std::vector<Bf16> narrow(96, Bf16{1});
  from_plain(layout, shape, plain.data(), narrow.data());
  for (std::size_t i = 0; i < narrow.size(); ++i) CHECK(narrow[i] == to_bf16(placed[i]));
  std::vector<float> back(60);
  to_plain(layout, shape, narrow.data(), back.data());
  for (std::size_t i = 0; i < back.size(); ++i) CHECK(back[i] == to_float(to_bf16(plain[i])));
}

TEST_CASE("layout: bf16 row by row is not plain") {
  Layout layout;
  CHECK(layout.is_plain());
  layout.element = Element::bf16;
  CHECK(layout.is_row_major());
  CHECK(!layout.is_plain());
  CHECK(layout != Layout{});
  CHECK(to_string(layout) == "row by row as bf16");
  const std::vector<float> plain = {1, -2, 3.25F};
  std::vector<Bf16> narrow(3);
  std::vector<float> back(3);
  from_plain(layout, {3}, plain.data(), narrow.data());
  to_plain(layout, {3}, narrow.data(), back.data());
  CHECK(back == plain);
}

}  // namespace
}  // namespace layup
