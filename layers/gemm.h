// SPDX-License-Identifier: Apache-2.0
// The matrix product that the reference kernels share.
#pragma once

#include <cstdint>

namespace layup {

// op(M) for a row-major matrix: element (i, j) of op(M) is data[i * stride + j], or
// data[j * stride + i] if transposed.
struct MatrixView {
  const float* data = nullptr;
  std::int64_t stride = 0;
  bool transposed = false;
};

// c [m,n] (row-major, rows c_stride apart) = op(a) [m,k] * op(b) [k,n], added to what c holds if
// `accumulate`. Operands must not overlap c.
//
// Never allocates: packed blocks lie on the stack (288 KiB). The bits of the result depend on m, n
// and k, not on the number of threads.
void gemm(int threads, std::int64_t m, std::int64_t n, std::int64_t k, MatrixView a, MatrixView b,
          float* c, std::int64_t c_stride, bool accumulate);

}  // namespace layup
