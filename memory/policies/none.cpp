// SPDX-License-Identifier: Apache-2.0
// `none`: everything that backward reads stays on the device; lifetimes and packing do the rest.
#include "memory/policy.h"

namespace layup {

Policy none_policy() {
  Policy policy;
  policy.name = "none";
  policy.summary = "everything stays on the device";
  policy.weighs_costs = false;
  policy.decide = [](const PolicyInput& input, int /*variant*/, int /*level*/) {
    Decisions decisions;
    decisions.retention = keep_candidates(input);
    return decisions;
  };
  return policy;
}

}  // namespace layup
