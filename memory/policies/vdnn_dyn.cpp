// SPDX-License-Identifier: Apache-2.0
// `vdnn_dyn`: nothing is offloaded if that fits, else the inputs of convolutions, else all inputs.
//
// Source and departures: see vdnn.h. The paper tries, in this order: all with the algorithms of
// least memory (can the network be trained at all?); nothing with the fastest algorithms; conv and
// all with the fastest; conv and all with slower ones, layer by layer. Algorithms being fixed here,
// its trials are these three plans, and the first that fits is the fastest.
//
// The variant "baseline" is what the paper compares with: nothing is offloaded, and two gradient
// maps of the largest size are there for the whole step.
#include "memory/policies/vdnn.h"

namespace layup {

Policy vdnn_dyn_policy() {
  Policy policy;
  policy.name = "vdnn_dyn";
  policy.summary = "as little of vdnn_conv and vdnn_all as fits";
  policy.num_variants = 3;
  policy.variant_names = {"none", "conv", "all", "baseline"};
  policy.add_reads = add_vdnn_reads;
  policy.decide = [](const PolicyInput& input, int variant, int /*level*/) {
    const std::vector<char> feeds_conv = find_inputs_of_convs(input);
    Decisions decisions = offload_inputs(input, [&](ValueId value) {
      return variant == 2 || (variant == 1 && feeds_conv[index(value)] != 0);
    });
    if (variant == 3) {
      std::int64_t largest = 0;
      for (const PhysicalValue& value : input.graph.values)
        if (value.kind == ValueKind::gradient) largest = std::max(largest, value.bytes);
      decisions.accounting_bytes = 2 * largest;
    }
    return decisions;
  };
  return policy;
}

}  // namespace layup
