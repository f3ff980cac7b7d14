// SPDX-License-Identifier: Apache-2.0
// What the policies of vDNN share.
//
// Source: Rhu et al. 2016, "vDNN: virtualized deep neural networks for scalable, memory-efficient
// neural network design", arXiv:1602.08124, section III. A layer's input X goes to the host beside
// the forward pass of the last layer that reads it, and comes back beside the backward pass of the
// layer above; both streams meet at the end of such a layer. Nothing is recomputed.
//
// As there, backward of pooling and normalisation has x and y on the device (this engine's pooling
// does with positions), and that of an activation in place has y.
//
// Departures: networks are DAGs of single operations here (a batch norm is a layer of its own);
// saved values stay; algorithms are fixed (the device's), so that results do not depend on the
// policy: (m) and (p) of the paper are one.
#pragma once

#include <algorithm>

#include "memory/policy.h"

namespace layup {

inline void add_vdnn_reads(PhysicalGraph& graph) {
  add_operands(graph, [](const PhysicalGraph& values, const PhysicalOperation& forward) {
    const bool has_parameters = std::any_of(
        forward.reads.begin(), forward.reads.end(),
        [&](ValueId value) { return values.value(value).kind == ValueKind::parameter; });
    if (forward.cost_kind != CostKind::bandwidth || has_parameters) return WantedOperands{};
    return WantedOperands{.x = forward.in_place.empty(), .y = true};
  });
}

// Whether a convolution reads the value in forward.
inline std::vector<char> find_inputs_of_convs(const PolicyInput& input) {
  std::vector<char> feeds_conv(input.graph.values.size(), 0);
  for (const PhysicalOperation& op : input.graph.operations)
    if (op.kind == OpKind::layer && op.pass == Pass::forward && op.cost_kind == CostKind::conv)
      for (const ValueId value : op.reads) feeds_conv[index(value)] = 1;
  return feeds_conv;
}

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
