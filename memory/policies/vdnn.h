// SPDX-License-Identifier: Apache-2.0
// What the policies of vDNN share.
//
// Source: Rhu et al. 2016, "vDNN: virtualized deep neural networks for scalable, memory-efficient
// neural network design", arXiv:1602.08124, section III. A layer's input X goes to the host beside
// the forward pass of the last layer that reads it, and comes back beside the backward pass of the
// layer above; both streams meet at the end of such a layer. Nothing is recomputed.
//
// Departures: networks are DAGs of single operations here (a batch norm is a layer of its own);
// saved values such as pooling indices stay; algorithms are fixed (the device's), so that results
// do not depend on the policy.
#pragma once

#include "memory/policy.h"

namespace layup {

// Offloads the candidates for which `is_offloaded` holds; keeps the others.
template <typename Predicate>
Decisions offload_inputs(const PolicyInput& input, const Predicate& is_offloaded) {
  Decisions decisions;
  decisions.retention = keep_candidates(input);
  decisions.copy_style = CopyStyle::layer_by_layer;
  for (const ValueId value : input.uses.candidates)
    if (input.graph.value(value).kind != ValueKind::saved && !is_small(input, value) &&
        is_offloaded(value))
      decisions.retention[index(value)] = Retention::offload;
  return decisions;
}

}  // namespace layup
