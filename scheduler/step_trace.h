// SPDX-License-Identifier: Apache-2.0
// The timeline of one training step, as it was and as it was predicted.
#pragma once

#include <span>

#include "engine/trace.h"
#include "scheduler/session_plan.h"

namespace layup {

// `programs`: those of one step in their order, at least one. `times`: when each of their
// instructions ran, one program after the other. Two processes, "measured" and
// "predicted", have the same tracks (compute, copy out, copy in) and slices, one per kernel and
// copy, with args `kind` and `bytes` (of a kernel: its operands). Besides:
//   - slices of kind "wait" on compute, where it stands still until a copy is done;
//   - counters "device bytes", "host bytes" and, if there is a file tier, "file bytes": `live`,
//   what
//     the plan has there at that moment, and `planned`, what is set aside for the program;
//   - an arrow from each offload to every prefetch of the same value.
// Times start with the first instruction.
Trace trace_step(std::span<const ProgramPlan* const> programs, std::span<const TimeSpan> times);

}  // namespace layup
