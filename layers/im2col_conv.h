// SPDX-License-Identifier: Apache-2.0
// The reference kernels of conv2d: im2col of a tile of output pixels and a block of channels, then
// a matrix product. With C' = C/groups, K' = K/groups, per group:
//   forward          y  [K',PQ]   = weight [K',C'RS] * columns [C'RS,PQ]
//   data gradient    dx           = col2im(weight^T [C'RS,K'] * dy [K',PQ])
//   filter gradient  dweight      = sum over N of dy [K',PQ] * columns^T [PQ,C'RS]
// With stride 1, small weights and K <= C the data gradient runs as a convolution of dy instead.
// Tiles, blocks and the order of sums depend on the geometry alone, so that the bits do not depend
// on the number of threads. Nothing is allocated.
#pragma once

#include <cstdint>

#include "layers/im2col.h"

namespace layup {

enum class ConvPass : std::uint8_t { forward, data_gradient, filter_gradient };

// Of the workspace that the kernels below need; about 1 MiB per thread, and for the filter gradient
// up to 4 MiB of partial sums.
std::int64_t im2col_workspace_bytes(const ConvGeometry& g, int threads, ConvPass pass);

// x [N,C,H,W], weight [K,C/groups,R,S], bias [K] or null; y, dy [N,K,P,Q].
void im2col_forward(const ConvGeometry& g, int threads, const float* x, const float* weight,
                    const float* bias, float* y, float* workspace);
void im2col_data_gradient(const ConvGeometry& g, int threads, const float* dy, const float* weight,
                          float* dx, float* workspace);
void im2col_filter_gradient(const ConvGeometry& g, int threads, const float* x, const float* dy,
                            float* dweight, float* workspace);
void im2col_bias_gradient(const ConvGeometry& g, int threads, const float* dy, float* dbias);

}  // namespace layup
