// SPDX-License-Identifier: Apache-2.0
// 3x3 convolutions of stride 1 and many channels by Winograd's F(4x4, 3x3): transforms of our own
// around the library's batched matrix product. Unlike the library's own Winograd it never holds all
// transformed filters at once: each thread has a few channels of them, which stay in its cache.
// Faster from about 64 x 128 channels on, with few tiles as well, and in a fraction of the memory
// (512 x 512 channels: 5 to 12 MiB instead of 121). Rounding is that of F(4x4, 3x3) anywhere, about
// three bits coarser than the direct algorithm's.
//
// Images lie in blocks of channels, whole ones only; weights as conv2d keeps them: [K, C] blocks of
// [3, 3, c, k].
#pragma once

#include <cstdint>

#include "engine/graph/layer.h"
#include "engine/shape.h"

namespace layup::cpu {

struct WinogradConv {
  Pass pass = Pass::forward;         // evaluate and replay are as forward
  Shape x, y;                        // [N, C, H, W], [N, K, P, Q]
  std::int64_t padding[2] = {0, 0};  // above and left, at most 2
  bool has_bias = false;
  int threads = 1;
};

std::int64_t winograd_workspace_bytes(const WinogradConv& conv);

// Operands:  forward          x, weight, bias (if any)  ->  y
//            backward_data    dy, weight                ->  dx
//            backward_params  x, dy                     ->  dweight, dbias (if any)
Kernel winograd_kernel(const WinogradConv& conv);

}  // namespace layup::cpu
