// SPDX-License-Identifier: Apache-2.0
// Eigen would start threads of its own; ours come from parallel_for.
#define EIGEN_DONT_PARALLELIZE
// GCC 12's AVX-512 intrinsics give false alarms (PR 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include "layers/gemm.h"

#include <Eigen/Core>
#include <algorithm>

#include "engine/parallel.h"
#include "engine/shape.h"

namespace layup {
namespace {

using Index = std::int64_t;

// Sizes of one product handed to Eigen. They are compile-time bounds, so that Eigen packs into
// arrays on the stack (it calls malloc for dynamic sizes) and never splits by the cache sizes that
// it finds at run time: the same tiles, hence the same bits, on every machine of one instruction
// set. 192 columns are whole vectors for every register blocking that Eigen has (16, 24, 32, 48).
constexpr int kTileRows = 96;
constexpr int kTileColumns = 192;
constexpr int kTileDepth = 256;

template <int kRows, int kColumns, bool kTransposed>
using View = Eigen::Map<
    const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic,
                        kTransposed ? Eigen::ColMajor : Eigen::RowMajor, kRows, kColumns>,
    0, Eigen::OuterStride<>>;

template <bool kTransposeA, bool kTransposeB>
void multiply_tile(Index m, Index n, Index k, const float* a, Index a_stride, const float* b,
                   Index b_stride, float* c, Index c_stride, bool accumulate) {
  const View<kTileRows, kTileDepth, kTransposeA> left(a, m, k, Eigen::OuterStride<>(a_stride));
  const View<kTileDepth, kTileColumns, kTransposeB> right(b, k, n, Eigen::OuterStride<>(b_stride));
  Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor, kTileRows,
                           kTileColumns>,
             0, Eigen::OuterStride<>>
      result(c, m, n, Eigen::OuterStride<>(c_stride));
  if (accumulate) {
    result.noalias() += left * right;
  } else {
    result.noalias() = left * right;
  }
}

const float* element(const MatrixView& view, Index row, Index column) {
  return view.transposed ? view.data + column * view.stride + row
                         : view.data + row * view.stride + column;
}

// Equal parts of at most `limit`, a multiple of 16 long: no tile is left with a few rows.
Index even_tile(Index count, Index limit) {
  const Index parts = (count + limit - 1) / limit;
  return std::min(limit, round_up((count + parts - 1) / std::max<Index>(parts, 1), 16));
}

}  // namespace

void gemm(int threads, Index m, Index n, Index k, MatrixView a, MatrixView b, float* c,
          Index c_stride, bool accumulate) {
  if (m <= 0 || n <= 0) return;
  if (k <= 0) {
    if (accumulate) return;
    for (Index i = 0; i < m; ++i) std::fill_n(c + i * c_stride, n, 0.0F);
    return;
  }
  using Multiply = decltype(&multiply_tile<false, false>);
  static constexpr Multiply kMultiply[2][2] = {
      {multiply_tile<false, false>, multiply_tile<false, true>},
      {multiply_tile<true, false>, multiply_tile<true, true>}};
  const Multiply multiply = kMultiply[a.transposed ? 1 : 0][b.transposed ? 1 : 0];
  const Index rows = even_tile(m, kTileRows);
  const Index columns = even_tile(n, kTileColumns);
  const Index depth = even_tile(k, kTileDepth);
  const Index tiles_across = (n + columns - 1) / columns;
  const Index tiles = (m + rows - 1) / rows * tiles_across;
  parallel_for(threads, tiles, [&](Index begin, Index end) {
    for (Index tile = begin; tile < end; ++tile) {
      const Index i = tile / tiles_across * rows;
      const Index j = tile % tiles_across * columns;
      for (Index l = 0; l < k; l += depth)
        multiply(std::min(rows, m - i), std::min(columns, n - j), std::min(depth, k - l),
                 element(a, i, l), a.stride, element(b, l, j), b.stride, c + i * c_stride + j,
                 c_stride, accumulate || l > 0);
    }
  });
}

}  // namespace layup
