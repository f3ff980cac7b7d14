// SPDX-License-Identifier: Apache-2.0
// The validator of plans against a slow one that looks at every pair and every action, on thousands
// of small changes to plans of random networks.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/error.h"
#include "memory/plan_memory.h"
#include "memory/validate_plan.h"
#include "tests/support/networks.h"
#include "tests/support/random_graph.h"

namespace layup {
namespace {

using test::RandomSource;

std::string fast_verdict(const MemoryPlan& plan, const PhysicalGraph& graph) {
  try {
    validate_plan(plan, graph);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

// The rules at the head of validate_plan.h, each in the plainest way.
class SlowChecker {
 public:
  SlowChecker(const MemoryPlan& plan, const PhysicalGraph& graph) : plan_(plan), graph_(graph) {}

  bool is_good() const {
    return residencies_are_good() && pairs_are_good() && operations_run_once() &&
           operands_are_there();
  }

 private:
  static bool is_compute(const Action& action) {
    return action.kind == ActionKind::run || action.kind == ActionKind::replay;
  }
  const Residency& stay(std::size_t i) const { return plan_.residencies[i]; }

  bool residencies_are_good() const {
    const auto last = static_cast<std::int32_t>(plan_.actions.size());
    return std::all_of(plan_.residencies.begin(), plan_.residencies.end(),
                       [&](const Residency& stay) {
                         if (stay.begin < 0 || stay.begin >= stay.end || stay.end > last)
                           return false;
                         if (stay.offset < 0 || stay.offset % kAlignment != 0 || stay.bytes <= 0)
                           return false;
                         if (stay.offset + stay.bytes > plan_.arena_bytes) return false;
                         if (stay.value == kWorkspace) return true;
                         const PhysicalValue& value = graph_.value(stay.value);
                         if (stay.bytes < value.bytes) return false;
                         if (!is_persistent(value.kind)) return true;
                         return stay.begin == 0 && stay.end == last &&
                                plan_.persistent.offsets.at(value.name) == stay.offset;
                       });
  }

  // `to` may begin in the bytes of `from` while that still lives, for the one action that ends it.
  bool is_handed_over(std::size_t from, std::size_t to) const {
    const Residency& a = stay(from);
    const Residency& b = stay(to);
    if (b.over != static_cast<std::int32_t>(from)) return false;
    if (a.end - 1 != b.begin || a.offset != b.offset || a.bytes != b.bytes) return false;
    const Action& action = plan_.actions[static_cast<std::size_t>(b.begin)];
    if (!is_compute(action)) return false;
    const PhysicalOperation& op = operation_of(graph_, action);
    for (const InPlace& pair : op.in_place)
      if (op.reads[static_cast<std::size_t>(pair.read)] == a.value &&
          op.writes[static_cast<std::size_t>(pair.write)] == b.value)
        return true;
    return false;
  }

  bool pairs_are_good() const {
    const auto count = static_cast<std::int32_t>(plan_.residencies.size());
    for (std::size_t i = 0; i < plan_.residencies.size(); ++i) {
      const std::int32_t over = stay(i).over;
      if (over >= count) return false;
      if (over >= 0 && !is_handed_over(static_cast<std::size_t>(over), i)) return false;
      for (std::size_t j = 0; j < i; ++j) {
        const Residency& a = stay(i);
        const Residency& b = stay(j);
        if (over >= 0 && over == b.over) return false;
        if (a.begin >= b.end || b.begin >= a.end) continue;
        if (a.offset >= b.offset + b.bytes || b.offset >= a.offset + a.bytes) continue;
        if (!is_handed_over(i, j) && !is_handed_over(j, i)) return false;
      }
    }
    return true;
  }

  bool operations_run_once() const {
    std::vector<int> runs(graph_.operations.size(), 0);
    for (const Action& action : plan_.actions)
      if (action.kind == ActionKind::run) ++runs[action.operation];
    return std::all_of(runs.begin(), runs.end(), [](int count) { return count == 1; });
  }

  // The stay that holds the value at this action.
  std::int32_t where(ValueId value, std::size_t at) const {
    for (std::size_t i = 0; i < plan_.residencies.size(); ++i)
      if (stay(i).value == value && stay(i).begin <= static_cast<std::int32_t>(at) &&
          static_cast<std::int32_t>(at) < stay(i).end)
        return static_cast<std::int32_t>(i);
    return -1;
  }

  bool operands_are_there() const {
    std::vector<char> is_filled(plan_.residencies.size(), 0);
    for (std::size_t i = 0; i < plan_.residencies.size(); ++i)
      is_filled[i] = stay(i).value != kWorkspace && is_persistent(graph_.value(stay(i).value).kind);
    std::vector<char> is_updated(graph_.values.size(), 0);
    for (std::size_t at = 0; at < plan_.actions.size(); ++at) {
      if (!is_compute(plan_.actions[at])) return false;  // these plans have no copies
      const PhysicalOperation& op = operation_of(graph_, plan_.actions[at]);
      for (const ValueId value : op.reads) {
        const std::int32_t place = where(value, at);
        if (place < 0 || is_filled[static_cast<std::size_t>(place)] == 0) return false;
        if (is_updated[index(value)] != 0) return false;
      }
      for (const ValueId value : op.writes) {
        const std::int32_t place = where(value, at);
        if (place < 0) return false;
        is_filled[static_cast<std::size_t>(place)] = 1;
        if (op.kind == OpKind::update) is_updated[index(value)] = 1;
      }
      std::int64_t workspace = 0;
      for (const Residency& stay : plan_.residencies)
        if (stay.value == kWorkspace && stay.begin <= static_cast<std::int32_t>(at) &&
            static_cast<std::int32_t>(at) < stay.end)
          workspace = std::max(workspace, stay.bytes);
      if (workspace < op.workspace_bytes) return false;
    }
    return true;
  }

  const MemoryPlan& plan_;
  const PhysicalGraph& graph_;
};

std::size_t any(RandomSource& random, std::size_t count) {
  return static_cast<std::size_t>(random.below(static_cast<std::int64_t>(count)));
}

// One small change; many of them leave a plan that is still right.
std::string mutate(MemoryPlan& plan, RandomSource& random) {
  const std::size_t number = any(random, plan.residencies.size());
  Residency& stay = plan.residencies[number];
  const std::int32_t sign = random.chance(50) ? 1 : -1;
  switch (random.below(11)) {
    case 0: stay.offset += sign * kAlignment * (1 + random.below(8)); return "offset";
    case 1:
      stay.offset = plan.residencies[any(random, plan.residencies.size())].offset;
      return "the offset of another one";
    case 2: stay.begin += sign; return "begin";
    case 3: stay.end += sign; return "end";
    case 4: stay.bytes += sign * kAlignment; return "bytes";
    case 5:
      stay.over = static_cast<std::int32_t>(any(random, plan.residencies.size() + 1)) - 1;
      return "over";
    case 6: plan.arena_bytes += sign * kAlignment; return "arena";
    case 7: {
      const std::size_t at = any(random, plan.actions.size() - 1);
      std::swap(plan.actions[at], plan.actions[at + 1]);
      return "neighbouring actions swapped";
    }
    case 8:
      plan.actions[any(random, plan.actions.size())] =
          plan.actions[any(random, plan.actions.size())];
      return "an action becomes another one";
    case 9:
      if (stay.over >= 0) stay.offset = 64 * random.below(plan.arena_bytes / 64);
      stay.over = -1;
      return "not in place";
    default:
      stay.begin = plan.residencies[any(random, plan.residencies.size())].begin;
      return "the begin of another one";
  }
}

TEST_CASE("plan: the validator agrees with a slow one on changed plans") {
  int num_good = 0;
  int num_bad = 0;
  for (std::uint64_t seed = 0; seed < 250; ++seed) {
    RandomSource random(seed);
    const PhysicalGraph graph = test::physical_training(
        test::parse_network(test::random_network(seed, 4 + static_cast<int>(random.below(14)))), 2);
    const MemoryPlan plan = test::plan_program(graph, random.chance(90) ? "none" : "caffe").plan;
    REQUIRE(SlowChecker(plan, graph).is_good());
    for (int change = 0; change < 60; ++change) {
      MemoryPlan changed = plan;
      std::string what = mutate(changed, random);
      if (random.chance(25)) what += ", " + mutate(changed, random);
      const std::string verdict = fast_verdict(changed, graph);
      const bool is_good = SlowChecker(changed, graph).is_good();
      INFO("seed " << seed << ", change " << change << " (" << what << "), the validator says \""
                   << verdict << "\", the slow one that it is " << (is_good ? "right" : "wrong"));
      CHECK(verdict.empty() == is_good);
      ++(is_good ? num_good : num_bad);
    }
  }
  // Both verdicts are met often, or the comparison says little.
  CHECK(num_good > 500);
  CHECK(num_bad > 3000);
}

}  // namespace
}  // namespace layup
