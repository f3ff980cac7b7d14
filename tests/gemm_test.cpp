// SPDX-License-Identifier: Apache-2.0
#include "layers/gemm.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "engine/rng.h"
#include "tests/support/allocation_counter.h"

namespace layup {
namespace {

struct Problem {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
};

std::vector<float> random_values(std::int64_t count, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = 2 * to_unit_float(static_cast<std::uint32_t>(mix((seed << 32) + i) >> 32)) - 1;
  return values;
}

// Operands with rows further apart than they are long, and the result likewise.
struct Operands {
  Operands(Problem p, bool transpose_a, bool transpose_b) : problem(p) {
    const std::int64_t a_rows = transpose_a ? p.k : p.m;
    const std::int64_t b_rows = transpose_b ? p.n : p.k;
    a_stride = (transpose_a ? p.m : p.k) + 3;
    b_stride = (transpose_b ? p.k : p.n) + 1;
    a_values = random_values(a_rows * a_stride, 1);
    b_values = random_values(b_rows * b_stride, 2);
    a = {a_values.data(), a_stride, transpose_a};
    b = {b_values.data(), b_stride, transpose_b};
  }

  static float at(MatrixView view, std::int64_t row, std::int64_t column) {
    return view.transposed ? view.data[column * view.stride + row]
                           : view.data[row * view.stride + column];
  }

  std::vector<float> run(int threads, bool accumulate) const {
    std::vector<float> c = random_values(problem.m * c_stride(), 3);
    gemm(threads, problem.m, problem.n, problem.k, a, b, c.data(), c_stride(), accumulate);
    return c;
  }

  std::int64_t c_stride() const { return problem.n + 2; }

  // Largest difference from sums in double; gaps between the rows count as well.
  double largest_error(bool accumulate) const {
    const std::vector<float> before = random_values(problem.m * c_stride(), 3);
    const std::vector<float> c = run(1, accumulate);
    double largest = 0;
    for (std::int64_t i = 0; i < problem.m; ++i)
      for (std::int64_t j = 0; j < c_stride(); ++j) {
        const auto at_ij = static_cast<std::size_t>(i * c_stride() + j);
        double sum = accumulate || j >= problem.n ? before[at_ij] : 0;
        for (std::int64_t l = 0; l < problem.k && j < problem.n; ++l)
          sum += static_cast<double>(at(a, i, l)) * at(b, l, j);
        largest = std::max(largest, std::abs(sum - c[at_ij]));
      }
    return largest;
  }

  Problem problem;
  std::int64_t a_stride = 0;
  std::int64_t b_stride = 0;
  std::vector<float> a_values;
  std::vector<float> b_values;
  MatrixView a;
  MatrixView b;
};

// Around the tile sizes (96, 192, 256), single rows and columns, an empty sum.
const std::vector<Problem> kProblems = {
    {1, 1, 1},      {1, 5, 7},     {5, 1, 300},    {3, 4, 5},      {16, 1024, 144}, {96, 192, 256},
    {97, 193, 257}, {200, 17, 33}, {10, 500, 513}, {128, 10, 512}, {7, 9, 0},       {64, 64, 576}};

}  // namespace

TEST_CASE("gemm agrees with sums in double for every way of storing the operands") {
  for (const Problem p : kProblems)
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true})
        for (const bool accumulate : {false, true}) {
          CAPTURE(p.m);
          CAPTURE(p.n);
          CAPTURE(p.k);
          CAPTURE(transpose_a);
          CAPTURE(transpose_b);
          CAPTURE(accumulate);
          // Rounding of k additions grows like sqrt(k) * 2^-24 * sum |a||b|, which is k / 4 here;
          // plain multiply and add, as on processors without FMA, come to a third of it.
          const double k = static_cast<double>(p.k);
          const double tolerance = std::sqrt(k) * (1 + k / 4) * 0x1p-24 + 3e-7;
          CHECK(Operands(p, transpose_a, transpose_b).largest_error(accumulate) < tolerance);
        }
}

TEST_CASE("gemm gives the same bits for any number of threads") {
  for (const Problem p : kProblems) {
    const Operands operands(p, false, true);
    const std::vector<float> one = operands.run(1, true);
    CHECK(operands.run(2, true) == one);
    CHECK(operands.run(3, true) == one);
    CHECK(operands.run(16, true) == one);
  }
}

TEST_CASE("gemm does not allocate") {
  if (!counts_allocations()) return;
  for (const bool transpose : {false, true}) {
    const Operands operands({300, 700, 900}, transpose, transpose);
    std::vector<float> c(300 * 700);
    for (const int threads : {1, 2}) {
      const auto run = [&] {
        gemm(threads, 300, 700, 900, operands.a, operands.b, c.data(), 700, false);
      };
      run();  // starts the threads
      const std::int64_t before = num_allocations();
      run();
      CHECK(num_allocations() == before);
    }
  }
  // The counter sees malloc, which is what Eigen calls.
  const std::int64_t before = num_allocations();
  void* volatile deliberate = std::malloc(300000);
  CHECK(num_allocations() == before + 1);
  std::free(deliberate);
}

}  // namespace layup
