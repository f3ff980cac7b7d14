// SPDX-License-Identifier: Apache-2.0
#include "memory/plan_memory.h"

#include <algorithm>
#include <map>

#include "engine/error.h"
#include "memory/finish_plan.h"
#include "memory/schedule.h"

namespace layup {
namespace {

const Policy& require_policy(const std::string& name) {
  const Policy* policy = find_policy(name);
  if (policy != nullptr) return *policy;
  const std::vector<std::string> known = policy_names();
  throw ConfigError("unknown policy \"" + name + "\"" + suggestion(name, known));
}

// A plan without offsets: enough to tell whether it may fit and what it would cost.
struct Candidate {
  Decisions decisions;
  DraftSchedule draft;
  std::int64_t live_bytes = 0;  // persistent values and accounting included
  // When it is asked for:
  std::optional<std::vector<Action>> actions;
  double step_ms = 0;
};

class Search {
 public:
  Search(const PhysicalGraph& graph, const CostModel& cost, const PlanOptions& options,
         const Policy& policy)
      : graph_(graph),
        cost_(cost),
        options_(options),
        policy_(policy),
        uses_(find_uses(graph)),
        persistent_(options.persistent ? *options.persistent : layout_persistent(graph)) {}

  // The highest level of each variant that fits; of these the shortest step. Nothing if none fits.
  std::optional<MemoryPlan> best_within_budget() {
    std::vector<std::pair<int, int>> found;  // variant, level
    for (int variant = 0; variant < policy_.num_variants; ++variant) {
      const int level = highest_level(variant);
      if (level >= 0) found.emplace_back(variant, level);
    }
    std::stable_sort(found.begin(), found.end(), [&](const auto& a, const auto& b) {
      return step_ms(a.first, a.second) < step_ms(b.first, b.second);
    });
    for (auto [variant, level] : found)
      for (; level >= 0; --level) {  // packing may need a little more than what is live
        if (!may_fit(candidate(variant, level))) continue;
        MemoryPlan plan = finish(variant, level);
        if (!options_.budget_bytes || plan.arena_bytes <= *options_.budget_bytes) return plan;
      }
    return std::nullopt;
  }

  MemoryPlan smallest() {
    std::optional<MemoryPlan> best;
    for (int variant = 0; variant < policy_.num_variants; ++variant) {
      if (!fits_host(candidate(variant, 0))) continue;
      MemoryPlan plan = finish(variant, 0);
      if (!best || plan.arena_bytes < best->arena_bytes) best = std::move(plan);
    }
    if (!best) best = finish(0, 0);  // the host tier is what it does not fit into
    return *best;
  }

 private:
  bool fits_host(const Candidate& plan) const {
    return !options_.host_budget_bytes || plan.draft.host_bytes <= *options_.host_budget_bytes;
  }
  bool may_fit(const Candidate& plan) const {
    return fits_host(plan) && (!options_.budget_bytes || plan.live_bytes <= *options_.budget_bytes);
  }

  int highest_level(int variant) {
    if (!may_fit(candidate(variant, 0))) return -1;
    int good = 0;
    int bad = policy_.num_levels;
    while (bad - good > 1) {
      const int middle = (good + bad) / 2;
      (may_fit(candidate(variant, middle)) ? good : bad) = middle;
    }
    return good;
  }

  Candidate& candidate(int variant, int level) {
    const auto [found, is_new] = candidates_.try_emplace({variant, level});
    if (!is_new) return found->second;
    Candidate& made = found->second;
    const PolicyInput input{graph_, uses_, cost_, options_.host_budget_bytes};
    made.decisions = policy_.decide(input, variant, level);
    if (!options_.updates_inside_backward) made.decisions.updates_inside_backward = false;
    made.draft = draft_schedule(graph_, uses_, made.decisions);
    made.live_bytes = persistent_.bytes + made.decisions.accounting_bytes + made.draft.peak_bytes;
    return made;
  }

  const std::vector<Action>& actions(int variant, int level) {
    Candidate& made = candidate(variant, level);
    if (!made.actions) {
      made.actions = place_copies(graph_, cost_, made.decisions, made.draft);
      made.step_ms = simulate(graph_, cost_, *made.actions).step_ms;
    }
    return *made.actions;
  }

  double step_ms(int variant, int level) {
    actions(variant, level);
    return candidate(variant, level).step_ms;
  }

  MemoryPlan finish(int variant, int level) {
    return finish_plan(graph_, policy_.name, candidate(variant, level).decisions,
                       actions(variant, level), persistent_);
  }

  const PhysicalGraph& graph_;
  const CostModel& cost_;
  const PlanOptions& options_;
  const Policy& policy_;
  const ValueUses uses_;
  const PersistentLayout persistent_;
  std::map<std::pair<int, int>, Candidate> candidates_;
};

PlanResult describe(const PhysicalGraph& graph, const CostModel& cost, const PlanOptions& options,
                    MemoryPlan plan) {
  PlanResult result;
  result.timeline = simulate(graph, cost, plan.actions);
  result.feasible = (!options.budget_bytes || plan.arena_bytes <= *options.budget_bytes) &&
                    (!options.host_budget_bytes || plan.host_bytes <= *options.host_budget_bytes);
  const Action& peak = plan.actions[static_cast<std::size_t>(plan.peak_action)];
  result.peak_operation = peak.kind == ActionKind::run || peak.kind == ActionKind::replay
                              ? operation_of(graph, peak).name
                              : "copy of " + graph.value(peak.value).name;
  result.plan = std::move(plan);
  return result;
}

// What `auto` tries, in order.
std::vector<std::string> policies_of_auto(const PlanOptions& options) {
  if (!options.budget_bytes) return {"none"};
  return {"none", "layup"};
}

}  // namespace

PersistentLayout layout_persistent(const PhysicalGraph& graph) {
  PersistentLayout layout;
  extend_persistent(layout, graph);
  return layout;
}

void extend_persistent(PersistentLayout& layout, const PhysicalGraph& graph) {
  layout.bytes = std::max(layout.bytes, kStepStateBytes);
  for (const PhysicalValue& value : graph.values) {
    if (!is_persistent(value.kind) || layout.offsets.contains(value.name)) continue;
    layout.offsets.emplace(value.name, layout.bytes);
    layout.bytes = checked_add(layout.bytes, value.bytes);
  }
}

PlanResult plan_memory(const PhysicalGraph& graph, const CostModel& cost,
                       const PlanOptions& options) {
  const std::vector<std::string> names =
      options.policy == "auto" ? policies_of_auto(options) : std::vector{options.policy};
  for (const std::string& name : names) {
    Search search(graph, cost, options, require_policy(name));
    if (!options.budget_bytes) return describe(graph, cost, options, search.smallest());
    if (std::optional<MemoryPlan> plan = search.best_within_budget())
      return describe(graph, cost, options, std::move(*plan));
    if (name == names.back()) return describe(graph, cost, options, search.smallest());
  }
  throw PlanError("no policy to plan with");
}

std::int64_t minimum_budget_bytes(const PhysicalGraph& graph, const CostModel& cost,
                                  const PlanOptions& options) {
  PlanOptions unbounded = options;
  unbounded.budget_bytes = 0;
  const std::string name =
      options.policy == "auto" ? policies_of_auto(unbounded).back() : options.policy;
  return Search(graph, cost, options, require_policy(name)).smallest().arena_bytes;
}

}  // namespace layup
