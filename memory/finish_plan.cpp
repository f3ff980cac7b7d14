// SPDX-License-Identifier: Apache-2.0
#include "memory/finish_plan.h"

#include <algorithm>

#include "engine/error.h"
#include "memory/arena_packing.h"
#include "memory/lifetimes.h"
#include "memory/schedule.h"
#include "memory/validate_plan.h"

namespace layup {
namespace {

bool is_persistent_stay(const PhysicalGraph& graph, const Residency& stay) {
  return stay.value != kWorkspace && is_persistent(graph.value(stay.value).kind);
}

// Persistent residencies get the layout's offsets, the others are packed above them.
void place(MemoryPlan& plan, const PhysicalGraph& graph) {
  std::vector<Block> blocks;
  std::vector<std::size_t> block_of(plan.residencies.size());
  for (std::size_t i = 0; i < plan.residencies.size(); ++i) {
    Residency& stay = plan.residencies[i];
    if (is_persistent_stay(graph, stay)) {
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
  for (std::size_t i = 0; i < plan.residencies.size(); ++i)
    if (!is_persistent_stay(graph, plan.residencies[i]))
      plan.residencies[i].offset = plan.persistent.bytes + packing.offsets[block_of[i]];
  plan.arena_bytes += plan.persistent.bytes + packing.height_bytes;
  plan.max_live_bytes += plan.persistent.bytes + max_live_bytes(blocks);
}

// The most bytes live at one action among the residencies that `counts` accepts.
template <typename Counts>
std::int64_t peak_of(const MemoryPlan& plan, const Counts& counts) {
  std::vector<std::int64_t> change(plan.actions.size() + 2, 0);
  for (const Residency& stay : plan.residencies) {
    if (!counts(stay)) continue;
    change[static_cast<std::size_t>(stay.begin + (stay.over >= 0 ? 1 : 0))] += stay.bytes;
    change[static_cast<std::size_t>(stay.end)] -= stay.bytes;
  }
  std::int64_t live = 0;
  std::int64_t most = 0;
  for (const std::int64_t bytes : change) most = std::max(most, live += bytes);
  return most;
}

void fill_classes(MemoryPlan& plan, const PhysicalGraph& graph) {
  const auto peak_of_kinds = [&](std::initializer_list<ValueKind> kinds) {
    return peak_of(plan, [&](const Residency& stay) {
      return stay.value != kWorkspace &&
             std::find(kinds.begin(), kinds.end(), graph.value(stay.value).kind) != kinds.end();
    });
  };
  plan.parameter_bytes = peak_of_kinds({ValueKind::parameter, ValueKind::buffer});
  plan.gradient_bytes = peak_of_kinds({ValueKind::parameter_gradient, ValueKind::gradient_sum});
  plan.solver_state_bytes = peak_of_kinds({ValueKind::solver_state});
  plan.activation_bytes = peak_of_kinds({ValueKind::input, ValueKind::activation, ValueKind::saved,
                                         ValueKind::carry, ValueKind::gradient});
  plan.staging_bytes = peak_of_kinds({ValueKind::staging, ValueKind::metric});
  plan.workspace_bytes =
      peak_of(plan, [](const Residency& stay) { return stay.value == kWorkspace; });
  const std::vector<std::int64_t> live = live_bytes(plan.residencies, plan.actions.size(), graph);
  plan.peak_action = std::max_element(live.begin(), live.end()) - live.begin();
}

// Every offloaded value has bytes of its own below: all are away at the turn of the step.
void place_below(MemoryPlan& plan, const PhysicalGraph& graph) {
  plan.host_offsets.assign(graph.values.size(), -1);
  for (const Action& action : plan.actions) {
    if (action.kind != ActionKind::offload) continue;
    std::int64_t& bytes = action.tier == Tier::host ? plan.host_bytes : plan.file_bytes;
    plan.host_offsets[index(action.value)] = bytes;
    bytes += graph.value(action.value).bytes;
  }
}

}  // namespace

std::vector<Residency> lifetimes_of(const PhysicalGraph& graph, const std::vector<Action>& actions,
                                    const Decisions& decisions) {
  std::vector<Residency> residencies = compute_lifetimes(graph, actions, decisions.in_place);
  if (decisions.reuse) return residencies;
  // Every stay has its bytes for the whole step; in place, one chain of stays has them.
  std::vector<char> hands_over(residencies.size(), 0);
  for (const Residency& stay : residencies)
    if (stay.over >= 0) hands_over[static_cast<std::size_t>(stay.over)] = 1;
  for (std::size_t i = 0; i < residencies.size(); ++i) {
    if (residencies[i].over < 0) residencies[i].begin = 0;
    if (hands_over[i] == 0) residencies[i].end = static_cast<std::int32_t>(actions.size());
  }
  return residencies;
}

MemoryPlan finish_plan(const PhysicalGraph& graph, const std::string& policy,
                       const Decisions& decisions, const std::vector<Action>& actions,
                       const PersistentLayout& persistent) {
  MemoryPlan plan;
  plan.policy = policy;
  plan.retention = decisions.retention;
  plan.persistent = persistent;
  plan.actions = actions;
  plan.residencies = lifetimes_of(graph, actions, decisions);
  plan.arena_bytes = plan.max_live_bytes = decisions.accounting_bytes;
  place(plan, graph);
  place_below(plan, graph);
  fill_classes(plan, graph);
  validate_plan(plan, graph);
  return plan;
}

}  // namespace layup
