// SPDX-License-Identifier: Apache-2.0
// `vdnn_all`: every layer's input is offloaded. See vdnn.h.
#include "memory/policies/vdnn.h"

namespace layup {

Policy vdnn_all_policy() {
  Policy policy;
  policy.name = "vdnn_all";
  policy.summary = "every layer's input goes to the host";
  policy.add_reads = add_vdnn_reads;
  policy.decide = [](const PolicyInput& input, int /*variant*/, int /*level*/) {
    return offload_inputs(input, [](ValueId) { return true; });
  };
  return policy;
}

}  // namespace layup
