// SPDX-License-Identifier: Apache-2.0
#include "memory/memory_plan.h"

namespace layup {

const char* to_string(Retention retention) {
  switch (retention) {
    case Retention::keep: return "keep";
    case Retention::offload: return "offload";
    case Retention::recompute: return "recompute";
  }
  return "?";
}

const PhysicalOperation& operation_of(const PhysicalGraph& graph, const Action& action) {
  return action.kind == ActionKind::replay ? graph.replays[action.operation]
                                           : graph.operations[action.operation];
}

std::string to_string(const MemoryPlan& plan, const PhysicalGraph& graph) {
  std::string text = "policy " + plan.policy + ", arena " + std::to_string(plan.arena_bytes) +
                     ", max live " + std::to_string(plan.max_live_bytes) + "\n";
  const auto name_of = [&](const Action& action) -> std::string {
    switch (action.kind) {
      case ActionKind::run: return operation_of(graph, action).name;
      case ActionKind::replay: return operation_of(graph, action).name;
      case ActionKind::offload:
        return "offload " + graph.value(action.value).name +
               (action.tier == Tier::file ? " to the file" : "");
      case ActionKind::wait_offload: return "wait for offload of " + graph.value(action.value).name;
      case ActionKind::prefetch:
        return "prefetch " + graph.value(action.value).name +
               (action.tier == Tier::file ? " from the file" : "");
      case ActionKind::wait_prefetch:
        return "wait for prefetch of " + graph.value(action.value).name;
    }
    return "?";
  };
  for (std::size_t i = 0; i < plan.actions.size(); ++i)
    text += std::to_string(i) + ": " + name_of(plan.actions[i]) + "\n";
  for (const Residency& stay : plan.residencies)
    text += "[" + std::to_string(stay.begin) + ", " + std::to_string(stay.end) + ") at " +
            std::to_string(stay.offset) + ", " + std::to_string(stay.bytes) +
            " bytes: " + (stay.value == kWorkspace ? "workspace" : graph.value(stay.value).name) +
            (stay.over >= 0 ? " (in place)" : "") + "\n";
  return text;
}

}  // namespace layup
