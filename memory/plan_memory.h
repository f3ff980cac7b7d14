// SPDX-License-Identifier: Apache-2.0
// PhysicalGraph x policy x budget -> MemoryPlan.
#pragma once

#include <optional>
#include <string>

#include "memory/memory_plan.h"
#include "memory/policy.h"

namespace layup {

struct PlanOptions {
  std::string policy = "auto";
  std::optional<std::int64_t> budget_bytes;  // of the device
  const MachineProfile* machine = nullptr;
  // Persistent values go where this says (those of the plan itself otherwise). A program of a
  // session must not have persistent values that the layout lacks.
  const PersistentLayout* persistent = nullptr;
};

struct PlanResult {
  MemoryPlan plan;  // the best within the budget; the smallest if none fits
  bool feasible = true;
  std::int64_t minimum_budget_bytes = 0;  // the smallest that this policy can work with
  std::string peak_operation;             // whose working set makes the peak
};

// Plans one program: decide, order the actions, compute lifetimes, pack, validate. Throws
// ConfigError for an unknown policy; a plan that does not fit is a result, not an error.
PlanResult plan_memory(const PhysicalGraph& graph, const PlanOptions& options);

// The StepState block lies at the start of every arena.
inline constexpr std::int64_t kStepStateBytes = kAlignment;

// Where persistent values lie: after the StepState, one after the other, in the graph's order.
PersistentLayout layout_persistent(const PhysicalGraph& graph);

}  // namespace layup
