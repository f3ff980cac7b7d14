// SPDX-License-Identifier: Apache-2.0
// The linear maps of Winograd's F(4x4, 3x3), on vectors of channels (or on numbers).
//
//   y = A^T [ (G g G^T) . (B^T d B) ] A            d [6,6], g [3,3], y [4,4]
//   gradient of g = G^T [ (B^T d B) . (A dy A^T) ] G, by the transposed maps
//
// Source: Lavin and Gray 2016, arXiv:1509.09308; the maps by Cook and Toom's construction from the
// points 0, a, -a, b, -b, infinity. Differs: not their points 1 and 2 but 5/8 and 3/2, whose
// products differ less in magnitude: rounding is half of theirs (1.0e-6 against 2.2e-6 relative in
// L2, over 128 channels of normal numbers).
#pragma once

namespace layup::cpu::winograd {

inline constexpr int kTile = 4;                    // outputs of a tile, each way
inline constexpr int kWindow = 6;                  // inputs of a tile
inline constexpr int kPlanes = kWindow * kWindow;  // products of a tile
inline constexpr int kFilter = 3;

inline constexpr float kA = 5.0F / 8;
inline constexpr float kB = 3.0F / 2;
inline constexpr float kA2 = kA * kA;
inline constexpr float kB2 = kB * kB;
// 1 / product of the differences from the other points.
inline constexpr float kN0 = 1 / (kA2 * kB2);
inline constexpr float kNa = 1 / (2 * kA2 * (kA2 - kB2));
inline constexpr float kNb = 1 / (2 * kB2 * (kB2 - kA2));

// Values at a, -a, b and -b of polynomials from their even and odd parts.
template <typename F>
void join(const F& even_a, const F& odd_a, const F& even_b, const F& odd_b, F (&to)[kWindow]) {
  to[1] = even_a + odd_a;
  to[2] = even_a - odd_a;
  to[3] = even_b + odd_b;
  to[4] = even_b - odd_b;
}

struct DataMap {  // B^T
  static constexpr int kFrom = kWindow, kTo = kWindow;
  template <typename F>
  static void apply(const F (&d)[kFrom], F (&to)[kTo]) {
    const F even_a = d[4] - kB2 * d[2];
    const F odd_a = kA * (d[3] - kB2 * d[1]);
    const F even_b = d[4] - kA2 * d[2];
    const F odd_b = kB * (d[3] - kA2 * d[1]);
    to[0] = kA2 * kB2 * d[0] - (kA2 + kB2) * d[2] + d[4];
    join(even_a, odd_a, even_b, odd_b, to);
    to[5] = kA2 * kB2 * d[1] - (kA2 + kB2) * d[3] + d[5];
  }
};

struct FilterMap {  // G
  static constexpr int kFrom = kFilter, kTo = kWindow;
  template <typename F>
  static void apply(const F (&g)[kFrom], F (&to)[kTo]) {
    const F even_a = kNa * g[0] + kNa * kA2 * g[2];
    const F odd_a = kNa * kA * g[1];
    const F even_b = kNb * g[0] + kNb * kB2 * g[2];
    const F odd_b = kNb * kB * g[1];
    to[0] = kN0 * g[0];
    join(even_a, odd_a, even_b, odd_b, to);
    to[5] = g[2];
  }
};

struct OutputMap {  // A^T
  static constexpr int kFrom = kWindow, kTo = kTile;
  template <typename F>
  static void apply(const F (&m)[kFrom], F (&to)[kTo]) {
    const F sum_a = m[1] + m[2];
    const F difference_a = m[1] - m[2];
    const F sum_b = m[3] + m[4];
    const F difference_b = m[3] - m[4];
    to[0] = m[0] + sum_a + sum_b;
    to[1] = kA * difference_a + kB * difference_b;
    to[2] = kA2 * sum_a + kB2 * sum_b;
    to[3] = kA2 * kA * difference_a + kB2 * kB * difference_b + m[5];
  }
};

struct UpstreamMap {  // A
  static constexpr int kFrom = kTile, kTo = kWindow;
  template <typename F>
  static void apply(const F (&y)[kFrom], F (&to)[kTo]) {
    const F even_a = y[0] + kA2 * y[2];
    const F odd_a = kA * y[1] + kA2 * kA * y[3];
    const F even_b = y[0] + kB2 * y[2];
    const F odd_b = kB * y[1] + kB2 * kB * y[3];
    to[0] = y[0];
    join(even_a, odd_a, even_b, odd_b, to);
    to[5] = y[3];
  }
};

struct GradientMap {  // G^T
  static constexpr int kFrom = kWindow, kTo = kFilter;
  template <typename F>
  static void apply(const F (&u)[kFrom], F (&to)[kTo]) {
    const F sum_a = kNa * (u[1] + u[2]);
    const F difference_a = kNa * kA * (u[1] - u[2]);
    const F sum_b = kNb * (u[3] + u[4]);
    const F difference_b = kNb * kB * (u[3] - u[4]);
    to[0] = kN0 * u[0] + sum_a + sum_b;
    to[1] = difference_a + difference_b;
    to[2] = kA2 * sum_a + kB2 * sum_b + u[5];
  }
};

// The map along both axes of a square that load(i, j) reads and store(i, j, value) writes.
template <typename F, typename Map, typename Load, typename Store>
void apply_twice(const Load& load, const Store& store) {
  F rows[Map::kFrom][Map::kTo];
  for (int i = 0; i < Map::kFrom; ++i) {
    F row[Map::kFrom];
    for (int j = 0; j < Map::kFrom; ++j) row[j] = load(i, j);
    Map::apply(row, rows[i]);
  }
  for (int j = 0; j < Map::kTo; ++j) {
    F column[Map::kFrom];
    F mapped[Map::kTo];
    for (int i = 0; i < Map::kFrom; ++i) column[i] = rows[i][j];
    Map::apply(column, mapped);
    for (int i = 0; i < Map::kTo; ++i) store(i, j, mapped[i]);
  }
}

}  // namespace layup::cpu::winograd
