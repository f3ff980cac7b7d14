// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/program.h"

namespace layup {

// Replays a program on paper, with a vector clock per stream and a map from bytes to what they hold
// (device, host and file apart). It knows nothing of plans or lifetimes. Near-linear.
//   - every byte that is read holds that value, written by an instruction that happens before;
//   - every byte that is written was last read and written by instructions that happen before;
//   - every operation runs once; what lives from step to step is accessed in the order of the
//   graph,
//     updated where it lies, and still there at the end;
//   - an operand that is written in place over another has exactly its bytes, and the operation
//     declares it; a workspace meets no operand;
//   - nothing lies outside arena, host block or file; copies of the file have whole blocks of
//   kFileAlignment at both ends; waits are for events recorded before.
// Throws PlanError naming the instruction.
void validate_program(const Program& program, const PhysicalGraph& graph);

}  // namespace layup
