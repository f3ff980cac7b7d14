// SPDX-License-Identifier: Apache-2.0
// Sums element by element, of layers and of gradients.
#pragma once

#include "engine/graph/layer.h"
#include "engine/layout.h"

namespace layup::cpu {

// write(0) = read(0) + read(1) + ..., in this order, in float32, then the relu if there is one. All
// operands have `count` elements of one kind, and the result may lie over any of them.
Kernel add_kernel(Element element, std::int64_t count, int num_inputs, bool relu, int threads);

}  // namespace layup::cpu
