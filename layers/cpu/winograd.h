// SPDX-License-Identifier: Apache-2.0
// 3x3 convolutions of stride 1 and many channels by Winograd's F(4x4, 3x3): transforms of our own
// around the library's batched matrix product. Unlike the library's own Winograd it never holds all
// transformed filters at once: each thread has a few channels of them, which stay in its cache.
// That makes it faster from some 64 channels on, with few tiles as well, in some MiB of workspace
// per thread. See docs/adr/0014-winograd-in-parts.md.
//
// Images lie in blocks of 16 channels, whole ones only; weights as conv2d keeps them: [K, C] blocks
// of [3, 3, c, k].
#pragma once

#include <cstdint>
#include <string>

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

struct WinogradPlan {
  std::string kernel;  // for people
  std::int64_t workspace_bytes = 0;
  // Work for all threads, a fast product, sums and workspace of sensible size. Whether it is faster
  // than other algorithms depends on the shape, too (see conv2d.cpp).
  bool is_worthwhile = false;
};
WinogradPlan plan_winograd(const WinogradConv& conv);

// Operands:  forward          x, weight, bias (if any)  ->  y
//            backward_data    dy, weight                ->  dx
//            backward_params  x, dy                     ->  dweight, dbias (if any)
Kernel winograd_kernel(const WinogradConv& conv);

}  // namespace layup::cpu
