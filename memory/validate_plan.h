// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "memory/memory_plan.h"

namespace layup {

// The independent checker of a plan, near-linear. It does not trust compute_lifetimes or
// pack_arena, but walks the actions itself:
//   - every operation runs once, and nothing reads a parameter after its update;
//   - every operand of every operation is resident, within the arena, aligned, and large enough;
//   - every value is made (written or brought back) in the residency that is read;
//   - a copy is waited for once, in the residency in which it was started; what comes back went
//   out;
//   - no two residencies overlap in time and space, but for a value that an operation writes in
//     place over an operand that it declares and that ends there;
//   - what goes to a tier comes back from it; there it has bytes of its own, inside the tier; what
//     goes to the file has whole blocks of kFileAlignment, here and there;
//   - persistent values lie where the layout says.
// Throws PlanError naming the values and actions.
void validate_plan(const MemoryPlan& plan, const PhysicalGraph& graph);

}  // namespace layup
