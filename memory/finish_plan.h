// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "memory/policy.h"

namespace layup {

// compute_lifetimes as the decisions want it: in place or not, with reuse of bytes or without.
std::vector<Residency> lifetimes_of(const PhysicalGraph& graph, const std::vector<Action>& actions,
                                    const Decisions& decisions);

// The last passes of planning: lifetimes, packing, bytes by class, offsets in the tiers below; then
// validate_plan.
MemoryPlan finish_plan(const PhysicalGraph& graph, const std::string& policy,
                       const Decisions& decisions, const std::vector<Action>& actions,
                       const PersistentLayout& persistent);

}  // namespace layup
