// SPDX-License-Identifier: Apache-2.0
// `vdnn_conv`: the inputs of convolutions are offloaded. See vdnn.h.
#include "memory/policies/vdnn.h"

namespace layup {

Policy vdnn_conv_policy() {
  Policy policy;
  policy.name = "vdnn_conv";
  policy.summary = "the inputs of convolutions go to the host";
  policy.decide = [](const PolicyInput& input, int /*variant*/, int /*level*/) {
    std::vector<char> feeds_conv(input.graph.values.size(), 0);
    for (const PhysicalOperation& op : input.graph.operations)
      if (op.kind == OpKind::layer && op.pass == Pass::forward && op.cost_kind == CostKind::conv)
        for (const ValueId value : op.reads) feeds_conv[index(value)] = 1;
    return offload_inputs(input, [&](ValueId value) { return feeds_conv[index(value)] != 0; });
  };
  return policy;
}

}  // namespace layup
