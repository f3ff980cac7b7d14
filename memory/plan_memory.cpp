// SPDX-License-Identifier: Apache-2.0
#include "memory/plan_memory.h"

#include <algorithm>

#include "engine/error.h"
#include "memory/arena_packing.h"
#include "memory/lifetimes.h"
#include "memory/validate_plan.h"

namespace layup {
namespace {

// The operations in order; with updates inside backward, each update as soon as its gradient is
// complete, so that few gradients are alive at a time.
std::vector<Action> order_actions(const PhysicalGraph& graph, const Decisions& decisions) {
  std::vector<std::vector<std::uint32_t>> updates_after(graph.operations.size());
  std::vector<char> moved(graph.operations.size(), 0);
  if (decisions.updates_inside_backward) {
    std::vector<std::uint32_t> written_by(graph.values.size(), 0);
    for (std::size_t i = 0; i < graph.operations.size(); ++i) {
      const PhysicalOperation& op = graph.operations[i];
      if (op.kind == OpKind::update) {
        updates_after[written_by[index(op.reads[0])]].push_back(static_cast<std::uint32_t>(i));
        moved[i] = 1;
      }
      for (const ValueId value : op.writes)
        written_by[index(value)] = static_cast<std::uint32_t>(i);
    }
    // A parameter must not change before backward has read it for the last time.
    std::vector<std::uint32_t> last_read(graph.values.size(), 0);
    for (std::size_t i = 0; i < graph.operations.size(); ++i)
      if (moved[i] == 0)
        for (const ValueId value : graph.operations[i].reads)
          last_read[index(value)] = static_cast<std::uint32_t>(i);
    std::vector<std::vector<std::uint32_t>> placed(graph.operations.size());
    for (std::size_t i = 0; i < updates_after.size(); ++i)
      for (const std::uint32_t update : updates_after[i]) {
        const ValueId parameter = graph.operations[update].writes[0];
        placed[std::max(static_cast<std::uint32_t>(i), last_read[index(parameter)])].push_back(
            update);
      }
    updates_after = std::move(placed);
  }
  std::vector<Action> actions;
  for (std::size_t i = 0; i < graph.operations.size(); ++i) {
    if (moved[i] == 0) actions.push_back({ActionKind::run, static_cast<std::uint32_t>(i), {}});
    for (const std::uint32_t update : updates_after[i])
      actions.push_back({ActionKind::run, update, {}});
  }
  return actions;
}

// Persistent residencies get the layout's offsets, the others are packed above them.
void place(MemoryPlan& plan, const PhysicalGraph& graph) {
  std::vector<Block> blocks;
  std::vector<std::size_t> block_of(plan.residencies.size());
  for (std::size_t i = 0; i < plan.residencies.size(); ++i) {
    Residency& stay = plan.residencies[i];
    if (stay.value != kWorkspace && is_persistent(graph.value(stay.value).kind)) {
      const auto found = plan.persistent.offsets.find(graph.value(stay.value).name);
      LAYUP_ASSERT(found != plan.persistent.offsets.end());
      stay.offset = found->second;
      continue;
    }
    if (stay.over >= 0) {  // the chain is one block: begins are sorted, so `over` came first
      block_of[i] = block_of[static_cast<std::size_t>(stay.over)];
      blocks[block_of[i]].end = std::max(blocks[block_of[i]].end, stay.end);
      continue;
    }
    block_of[i] = blocks.size();
    blocks.push_back({stay.bytes, stay.begin, stay.end});
  }
  const Packing packing = pack_arena(blocks);
  for (std::size_t i = 0; i < plan.residencies.size(); ++i) {
    Residency& stay = plan.residencies[i];
    if (stay.value == kWorkspace || !is_persistent(graph.value(stay.value).kind))
      stay.offset = plan.persistent.bytes + packing.offsets[block_of[i]];
  }
  plan.arena_bytes += plan.persistent.bytes + packing.height_bytes;
  plan.max_live_bytes += plan.persistent.bytes + max_live_bytes(blocks);
}

struct Peak {
  std::int64_t bytes = 0;
  std::int32_t action = 0;
};

// The most bytes live at one action among the residencies that `counts` accepts. A residency that
// takes over another's bytes counts from the next action on.
template <typename Counts>
Peak find_peak(const MemoryPlan& plan, const Counts& counts) {
  std::vector<std::int64_t> change(plan.actions.size() + 2, 0);
  for (const Residency& stay : plan.residencies) {
    if (!counts(stay)) continue;
    change[static_cast<std::size_t>(stay.begin + (stay.over >= 0 ? 1 : 0))] += stay.bytes;
    change[static_cast<std::size_t>(stay.end)] -= stay.bytes;
  }
  Peak peak;
  std::int64_t live = 0;
  for (std::size_t at = 0; at < plan.actions.size(); ++at) {
    live += change[at];
    if (live > peak.bytes) peak = {live, static_cast<std::int32_t>(at)};
  }
  return peak;
}

void fill_classes(MemoryPlan& plan, const PhysicalGraph& graph) {
  const auto peak_of = [&](std::initializer_list<ValueKind> kinds) {
    return find_peak(plan,
                     [&](const Residency& stay) {
                       return stay.value != kWorkspace &&
                              std::find(kinds.begin(), kinds.end(), graph.value(stay.value).kind) !=
                                  kinds.end();
                     })
        .bytes;
  };
  plan.parameter_bytes = peak_of({ValueKind::parameter, ValueKind::buffer});
  plan.gradient_bytes = peak_of({ValueKind::parameter_gradient});
  plan.solver_state_bytes = peak_of({ValueKind::solver_state});
  plan.activation_bytes = peak_of({ValueKind::input, ValueKind::activation, ValueKind::saved,
                                   ValueKind::carry, ValueKind::gradient});
  plan.staging_bytes = peak_of({ValueKind::staging, ValueKind::metric});
  plan.workspace_bytes =
      find_peak(plan, [](const Residency& stay) { return stay.value == kWorkspace; }).bytes;
  plan.peak_action = find_peak(plan, [](const Residency&) { return true; }).action;
}

MemoryPlan make_plan(const PhysicalGraph& graph, const Policy& policy, const PlanOptions& options) {
  const Decisions decisions = policy.decide({graph, options.machine});
  MemoryPlan plan;
  plan.policy = policy.name;
  plan.retention = decisions.retention;
  if (plan.retention.empty()) plan.retention.assign(graph.values.size(), Retention::keep);
  plan.persistent = options.persistent ? *options.persistent : layout_persistent(graph);
  plan.actions = order_actions(graph, decisions);
  plan.residencies = compute_lifetimes(graph, plan.actions, decisions.in_place);
  if (!decisions.reuse)
    for (Residency& stay : plan.residencies) {
      stay.begin = 0;
      stay.end = static_cast<std::int32_t>(plan.actions.size());
    }
  plan.arena_bytes = plan.max_live_bytes = decisions.accounting_bytes;
  place(plan, graph);
  fill_classes(plan, graph);
  validate_plan(plan, graph);
  return plan;
}

}  // namespace

PersistentLayout layout_persistent(const PhysicalGraph& graph) {
  PersistentLayout layout;
  layout.bytes = kStepStateBytes;
  for (const PhysicalValue& value : graph.values) {
    if (!is_persistent(value.kind)) continue;
    layout.offsets.emplace(value.name, layout.bytes);
    layout.bytes = checked_add(layout.bytes, value.bytes);
  }
  return layout;
}

PlanResult plan_memory(const PhysicalGraph& graph, const PlanOptions& options) {
  const std::string name = options.policy == "auto" ? "none" : options.policy;
  const Policy* policy = find_policy(name);
  if (policy == nullptr) {
    const std::vector<std::string> known = policy_names();
    throw ConfigError("unknown policy \"" + options.policy + "\"" +
                      suggestion(options.policy, known));
  }
  PlanResult result;
  result.plan = make_plan(graph, *policy, options);
  result.minimum_budget_bytes = result.plan.arena_bytes;
  result.feasible = !options.budget_bytes || result.plan.arena_bytes <= *options.budget_bytes;
  result.peak_operation =
      operation_of(graph, result.plan.actions[static_cast<std::size_t>(result.plan.peak_action)])
          .name;
  return result;
}

}  // namespace layup
