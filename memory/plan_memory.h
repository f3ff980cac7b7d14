// SPDX-License-Identifier: Apache-2.0
// PhysicalGraph x policy x budgets -> MemoryPlan.
#pragma once

#include <optional>
#include <string>

#include "memory/memory_plan.h"
#include "memory/policy.h"
#include "memory/simulate.h"

namespace layup {

struct PlanOptions {
  std::string policy = "auto";
  std::optional<std::int64_t> budget_bytes;       // of the device
  std::optional<std::int64_t> host_budget_bytes;  // of the host tier; none: unbounded
  // What the host tier cannot take goes to a file, which is unbounded. The graph must be made for
  // it (widen_alignment to the file's).
  bool has_file = false;
  bool updates_inside_backward = true;  // false: all updates at the end, whatever the policy
  // Persistent values go where this says (those of the plan itself otherwise). A program of a
  // session must not have persistent values that the layout lacks.
  const PersistentLayout* persistent = nullptr;
};

struct PlanResult {
  MemoryPlan plan;    // the best within the budgets; the smallest if none fits
  Timeline timeline;  // predicted
  bool feasible = true;
  std::string peak_operation;  // whose working set makes the peak
};

// Plans one program: decide, order, schedule copies, compute lifetimes, pack, validate. Throws
// ConfigError for an unknown policy; a plan that does not fit is a result, not an error.
PlanResult plan_memory(const PhysicalGraph& graph, const CostModel& cost,
                       const PlanOptions& options);

// The smallest device budget that the policy can work with (`auto`: that of its last resort).
// Nothing if no plan of it fits the host budget.
std::optional<std::int64_t> minimum_budget_bytes(const PhysicalGraph& graph, const CostModel& cost,
                                                 const PlanOptions& options);

// The StepState block lies at the start of every arena.
inline constexpr std::int64_t kStepStateBytes = kAlignment;

// Where persistent values lie: after the StepState, one after the other, in the graph's order.
PersistentLayout layout_persistent(const PhysicalGraph& graph);
// Adds what another program of the session has and the layout lacks.
void extend_persistent(PersistentLayout& layout, const PhysicalGraph& graph);

}  // namespace layup
