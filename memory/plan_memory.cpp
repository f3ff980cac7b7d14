// SPDX-License-Identifier: Apache-2.0
#include "memory/plan_memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "engine/error.h"
#include "memory/finish_plan.h"
#include "memory/schedule.h"

namespace layup {
namespace {

// A policy and the variants that are tried: [first, end).
struct Choice {
  const Policy* policy = nullptr;
  int first_variant = 0;
  int end_variant = 0;
};

Choice require_policy(const std::string& name) {
  const std::size_t slash = name.find('/');
  const Policy* policy = find_policy(name.substr(0, slash));
  if (policy != nullptr && slash == std::string::npos) return {policy, 0, policy->num_variants};
  if (policy != nullptr) {
    const auto& names = policy->variant_names;
    const auto found = std::find(names.begin(), names.end(), name.substr(slash + 1));
    const auto number = static_cast<int>(found - names.begin());
    if (found != names.end()) return {policy, number, number + 1};
  }
  const std::vector<std::string> known = plannable_names();
  throw ConfigError("unknown policy \"" + name + "\"" + suggestion(name, known));
}

// The graph of which a policy's plans are made.
PhysicalGraph graph_for(const Policy& policy, const PhysicalGraph& graph) {
  PhysicalGraph changed = graph;
  if (policy.add_reads != nullptr) policy.add_reads(changed);
  return changed;
}

// How full copies may make the device (see place_copies), in parts of what the plan needs anyway:
// each is tried. Beyond the first three, copies get bytes of their own, where the budget has them.
constexpr std::array<double, 5> kFills = {1, 0.9, 0.8, 1.1, 1.25};
constexpr std::size_t kNumSmallFills = 3;

// Scheduling all variants and levels of a larger graph would take longer than about half a second:
// there the highest level that fits is looked for by bisection.
constexpr std::int64_t kMostScheduled = 1'100'000;

// A plan without offsets: enough to tell whether it may fit.
struct Draft {
  Decisions decisions;
  DraftSchedule schedule;
  std::int64_t live_bytes = 0;  // no packing needs less; persistent values and accounting included
  double least_ms = 0;          // no placing of copies makes the step shorter
};

// All plans that a policy offers: variants x levels x fills. What is best is looked for among the
// same plans in the same order whatever the budget, so that more memory never makes a plan worse
// (but by bisection, where a level between two that were tried may be better), and the smallest
// budget is exactly the one below which nothing is found.
class Search {
 public:
  Search(const PhysicalGraph& graph, const CostModel& cost, const PlanOptions& options,
         const std::string& name, const Choice& choice)
      : graph_(graph_for(*choice.policy, graph)),
        cost_(cost),
        options_(options),
        name_(name),
        policy_(*choice.policy),
        uses_(find_uses(graph_)),
        persistent_(options.persistent ? *options.persistent : layout_persistent(graph)) {
    below_.push_back({{graph_, uses_, cost_, options_.host_budget_bytes}, {}});
    if (options.has_file) {
      // The plans without the file stay among those that are looked at: it never makes one worse.
      file_cost_ = cost.with_file_as_host();
      below_.push_back(
          {{graph_, uses_, *file_cost_, {}}, options_.host_budget_bytes.value_or(kUnbounded)});
    }
    for (const Below& below : below_) add_drafts(below, choice);
  }

  // Of the plans that fit the one with the shortest step; of equal ones that with the least
  // transfer and recompute. Nothing if none fits.
  std::optional<MemoryPlan> best_within_budget() {
    std::optional<MemoryPlan> best = best_of_drafts();
    if (best || untried_.empty()) return best;
    // What might have fitted did not once it was packed.
    for (const auto& [below, variant] : std::exchange(untried_, {}))
      add_by_bisection(*below, variant);
    return best_of_drafts();
  }
  std::optional<MemoryPlan> best_of_drafts() const {
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    for (std::size_t i = 0; i < drafts_.size(); ++i)
      if (may_fit(drafts_[i]))
        queue.push({in_units(drafts_[i].least_ms), -1, drafts_[i].live_bytes, i, kNotPlaced});
    while (!queue.empty()) {
      const Entry entry = queue.top();
      queue.pop();
      if (entry.fill == kNotPlaced) {
        for (std::size_t fill = 0; fill < num_fills(drafts_[entry.draft]); ++fill)
          if (has_room(drafts_[entry.draft], kFills[fill])) queue.push(placed(entry.draft, fill));
        continue;
      }
      MemoryPlan plan = finish(entry.draft, entry.fill);
      if (!options_.budget_bytes || plan.arena_bytes <= *options_.budget_bytes) return plan;
    }
    return std::nullopt;
  }

  // The plan that needs the least memory of those that the host tier can hold; of all, if none.
  MemoryPlan smallest() const {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < drafts_.size(); ++i)
      if (fits_host(drafts_[i])) order.push_back(i);
    if (order.empty()) return finish(0, 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return drafts_[a].live_bytes < drafts_[b].live_bytes;
    });
    std::optional<MemoryPlan> best;
    for (const std::size_t i : order)
      for (std::size_t fill = 0; fill < std::min(kNumSmallFills, num_fills(drafts_[i])); ++fill) {
        if (best && drafts_[i].live_bytes >= best->arena_bytes) return *best;
        MemoryPlan plan = finish(i, fill);
        if (!best || plan.arena_bytes < best->arena_bytes) best = std::move(plan);
      }
    return *best;
  }

 private:
  static constexpr std::size_t kNotPlaced = kFills.size();
  static constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();

  // The tiers below, as a policy sees them: one with costs and a bound.
  struct Below {
    PolicyInput input;
    std::optional<std::int64_t> host_bytes_before_file;
  };

  // What is better comes first. Times are in whole units, so that sums in another order are equal.
  struct Entry {
    std::int64_t step = 0;
    std::int64_t extra = 0;  // transfer and recompute
    std::int64_t live_bytes = 0;
    std::size_t draft = 0;
    std::size_t fill = 0;

    auto operator<=>(const Entry&) const =
        default;  // NOLINT(modernize-use-nullptr): a mistake of 14
  };

  void add_drafts(const Below& below, const Choice& choice) {
    const std::int64_t all = std::int64_t{choice.end_variant - choice.first_variant} *
                             policy_.num_levels *
                             static_cast<std::int64_t>(graph_.operations.size());
    for (int variant = choice.first_variant; variant < choice.end_variant; ++variant) {
      if (all <= kMostScheduled) {
        for (int level = 0; level < policy_.num_levels; ++level) add_draft(below, variant, level);
      } else if (variant >= policy_.first_tight_variant && any_may_fit()) {
        untried_.emplace_back(&below, variant);
      } else {
        add_by_bisection(below, variant);
      }
    }
  }

  // Level 0 and, with a budget, the highest that fits and the one below it (packing may need a
  // little more than what is live). Higher levels need more.
  void add_by_bisection(const Below& below, int variant) {
    add_draft(below, variant, 0);
    if (!options_.budget_bytes || !may_fit(drafts_.back())) return;
    const auto fits = [&](int level) {
      add_draft(below, variant, level);
      const bool fit = may_fit(drafts_.back());
      if (!fit) drafts_.pop_back();
      return fit;
    };
    int good = 0;
    int bad = policy_.num_levels;
    while (bad - good > 1) {
      const int middle = (good + bad) / 2;
      (fits(middle) ? good : bad) = middle;
    }
  }

  void add_draft(const Below& below, int variant, int level) {
    Draft draft;
    draft.decisions = policy_.decide(below.input, variant, level);
    if (!options_.updates_inside_backward) draft.decisions.updates_inside_backward = false;
    // The next level of the same variant often changes nothing.
    if (level > 0 && drafts_.back().decisions == draft.decisions) return;
    draft.schedule = draft_schedule(graph_, uses_, draft.decisions, below.host_bytes_before_file);
    draft.live_bytes =
        persistent_.bytes + draft.decisions.accounting_bytes + draft.schedule.peak_bytes;
    draft.least_ms = cost_.compute_ms();
    for (const Action& action : draft.schedule.order.actions)
      if (action.kind == ActionKind::replay) draft.least_ms += cost_.replay_ms[action.operation];
    // Of speed f, copies of both directions at once take 1 - (1 - f)^2: less than each by itself.
    const double at_once = 1 - std::max(cost_.interference, cost_.file.interference) / 2;
    for (const OffloadSpan& span : draft.schedule.order.offloads)
      if (span.number == 0)
        draft.least_ms += at_once * cost_.load_ms(graph_.value(span.value).bytes,
                                                  draft.schedule.tiers[index(span.value)]);
    drafts_.push_back(std::move(draft));
  }

  bool any_may_fit() const {
    return options_.budget_bytes &&
           std::any_of(drafts_.begin(), drafts_.end(), [&](const Draft& d) { return may_fit(d); });
  }
  bool fits_host(const Draft& draft) const {
    return !options_.host_budget_bytes || draft.schedule.host_bytes <= *options_.host_budget_bytes;
  }
  bool may_fit(const Draft& draft) const {
    return fits_host(draft) &&
           (!options_.budget_bytes || draft.live_bytes <= *options_.budget_bytes);
  }
  bool has_room(const Draft& draft, double fill) const {
    if (fill <= 1) return true;
    const double more = (fill - 1) * static_cast<double>(draft.schedule.peak_bytes);
    return !options_.budget_bytes || static_cast<double>(draft.live_bytes) + more <=
                                         static_cast<double>(*options_.budget_bytes);
  }
  static std::size_t num_fills(const Draft& draft) {
    const bool is_gated = draft.decisions.copy_style == CopyStyle::gated;
    return is_gated && !draft.schedule.order.offloads.empty() ? kFills.size() : 1;
  }

  std::int64_t in_units(double ms) const {
    constexpr double kUnitsPerStep = 1e6;
    // Most times lie on a boundary (the step of keep-all is one whole): shift them off it.
    return static_cast<std::int64_t>(std::floor((ms / cost_.compute_ms() + 1e-9) * kUnitsPerStep));
  }

  std::vector<Action> actions(std::size_t draft, std::size_t fill) const {
    return place_copies(graph_, cost_, drafts_[draft].decisions, drafts_[draft].schedule,
                        kFills[fill]);
  }

  Entry placed(std::size_t draft, std::size_t fill) const {
    const Timeline timeline = simulate(graph_, cost_, actions(draft, fill));
    return {in_units(timeline.step_ms), in_units(timeline.transfer_ms + timeline.recompute_ms),
            drafts_[draft].live_bytes, draft, fill};
  }

  MemoryPlan finish(std::size_t draft, std::size_t fill) const {
    return finish_plan(graph_, name_, drafts_[draft].decisions, actions(draft, fill), persistent_);
  }

  const PhysicalGraph graph_;
  const CostModel& cost_;
  const PlanOptions& options_;
  const std::string name_;
  const Policy& policy_;
  const ValueUses uses_;
  const PersistentLayout persistent_;
  std::optional<CostModel> file_cost_;
  std::vector<Below> below_;
  std::vector<Draft> drafts_;
  std::vector<std::pair<const Below*, int>> untried_;  // variants for tight budgets, left out
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
  layout.bytes = round_up(layout.bytes, graph.alignment);
}

PlanResult plan_memory(const PhysicalGraph& graph, const CostModel& cost,
                       const PlanOptions& options) {
  const std::vector<std::string> names =
      options.policy == "auto" ? policies_of_auto(options) : std::vector{options.policy};
  for (const std::string& name : names) {
    Search search(graph, cost, options, name, require_policy(name));
    if (!options.budget_bytes) return describe(graph, cost, options, search.smallest());
    if (std::optional<MemoryPlan> plan = search.best_within_budget())
      return describe(graph, cost, options, std::move(*plan));
    if (name == names.back()) return describe(graph, cost, options, search.smallest());
  }
  throw PlanError("no policy to plan with");
}

std::optional<std::int64_t> minimum_budget_bytes(const PhysicalGraph& graph, const CostModel& cost,
                                                 const PlanOptions& options) {
  PlanOptions unbounded = options;
  unbounded.budget_bytes = 0;
  const std::string name =
      options.policy == "auto" ? policies_of_auto(unbounded).back() : options.policy;
  const MemoryPlan plan = Search(graph, cost, options, name, require_policy(name)).smallest();
  if (options.host_budget_bytes && plan.host_bytes > *options.host_budget_bytes)
    return std::nullopt;
  return plan.arena_bytes;
}

}  // namespace layup
