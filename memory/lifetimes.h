// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "memory/memory_plan.h"

namespace layup {

// The residencies that a sequence of actions implies, without offsets: persistent values for the
// whole program, every other value from the write (or prefetch) that makes it to its last use (or
// the wait for its copy) before it is made again, workspaces for their action. In the order of
// their begin.
//
// With `in_place`, a value takes over the bytes of an operand that the operation lets it lie over
// and that nobody uses afterwards.
std::vector<Residency> compute_lifetimes(const PhysicalGraph& graph,
                                         const std::vector<Action>& actions, bool in_place);

}  // namespace layup
