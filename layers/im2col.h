// SPDX-License-Identifier: Apache-2.0
// A convolution's geometry, and the copies that turn it into matrix products.
//
// N C H W input, K output channels, P Q output height and width, R S kernel height and width.
#pragma once

#include <cstdint>

namespace layup {

struct ConvGeometry {
  std::int64_t batch = 0;         // N
  std::int64_t channels = 0;      // C
  std::int64_t height = 0;        // H
  std::int64_t width = 0;         // W
  std::int64_t out_channels = 0;  // K
  std::int64_t out_height = 0;    // P
  std::int64_t out_width = 0;     // Q
  std::int64_t kernel[2] = {};    // R, S
  std::int64_t stride[2] = {};
  std::int64_t padding[2] = {};
  std::int64_t dilation[2] = {};
  std::int64_t groups = 1;
};

// Writes the columns of output pixels [begin, end) (indices p * Q + q) for `channels` channels of
// one sample:
//   columns[(c * R + r) * S + s][i - begin] = x[c][p * stride - padding + r * dilation][likewise]
// and 0 where that lies in the padding. Rows of `columns` are `stride` floats apart.
void im2col(const ConvGeometry& g, std::int64_t channels, std::int64_t begin, std::int64_t end,
            const float* x,  // [channels,H,W]
            float* columns, std::int64_t stride);

// The transpose of im2col: adds every column element to the pixel of dx that it came from, in the
// order r, s, pixel. May overwrite `columns`.
void col2im(const ConvGeometry& g, std::int64_t channels, std::int64_t begin, std::int64_t end,
            float* columns, std::int64_t stride,
            float* dx);  // [channels,H,W]

}  // namespace layup
