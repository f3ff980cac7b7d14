// SPDX-License-Identifier: Apache-2.0
// Operations that become one before any policy sees them.
//
//   batch_norm, relu        y = relu(bn(x)); backward finds the sign of bn(x) again from x, by the
//                           code of the forward pass, and needs neither y nor a pass of its own
//   add, relu               y = relu(a + b); the backward pass of the relu stays as it is
//   batch_norm, add, relu   y = relu(bn(x) + other); likewise
//   backward of batch_norm  the gradients of its parameters and of its image, if both are wanted:
//                           the image is still in the cache when its gradient is made
//
// Only where nobody else reads what lies between. Operands of fused operations:
//   batch_norm, all gradients: reads x, dy, weight, [bias,] mean, inv_std, the bias where a relu
//                              follows; writes dx, dweight, dbias
//   batch_norm with relu:      backward_params alone reads x, dy, weight, bias, mean, inv_std
//   batch_norm with add_relu:  the other operand is the last read
#pragma once

#include "engine/graph/physical_graph.h"

namespace layup::cpu {

struct FusedOperations {
  std::vector<PhysicalOperation> operations;
  std::vector<PhysicalOperation> replays;  // of nodes; loads are not there yet
};

FusedOperations fuse(const Graph& graph, const TrainingGraph& training);

}  // namespace layup::cpu
