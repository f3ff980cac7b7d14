// SPDX-License-Identifier: Apache-2.0
// `vdnn_conv`: the inputs of convolutions are offloaded. See vdnn.h.
#include "memory/policies/vdnn.h"

namespace layup {

Policy vdnn_conv_policy() {
  Policy policy;
  policy.name = "vdnn_conv";
  policy.summary = "the inputs of convolutions go to the host";
  policy.add_reads = add_vdnn_reads;
  policy.decide = [](const PolicyInput& input, int /*variant*/, int /*level*/) {
    const std::vector<char> feeds_conv = find_inputs_of_convs(input);
    return offload_inputs(input, [&](ValueId value) { return feeds_conv[index(value)] != 0; });
  };
  return policy;
}

}  // namespace layup
