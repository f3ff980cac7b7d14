// SPDX-License-Identifier: Apache-2.0
// Schedules of random networks under random decisions: every one is planned, lowered and accepted
// by both validators, lifetimes and peaks are what a slow walk finds, and those that are run give
// the bits of keep-all.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "engine/error.h"
#include "memory/finish_plan.h"
#include "memory/schedule.h"
#include "scheduler/lower.h"
#include "tests/support/networks.h"
#include "tests/support/random_graph.h"
#include "tests/support/training_run.h"

namespace layup {
namespace {

using test::RandomSource;

std::string random_text(std::uint64_t seed, RandomSource& random) {
  return test::random_network(seed, 3 + static_cast<int>(random.below(16)));
}

PhysicalGraph random_graph(std::uint64_t seed, RandomSource& random) {
  const Graph graph = build_graph(test::parse_network(random_text(seed, random)), 2);
  DifferentiateOptions options;
  options.solver_states = {"momentum"};
  if (random.chance(30)) options.clip_norm = 1;
  options.micro_batch = static_cast<MicroBatch>(random.chance(60) ? 0 : random.below(4));
  return select_kernels(graph, differentiate(graph, options), DeviceKind::reference, 1);
}

using Stay = std::tuple<std::uint32_t, std::int32_t, std::int32_t>;  // value, begin, end

bool makes(const PhysicalGraph& graph, const Action& action, ValueId value) {
  if (action.kind == ActionKind::prefetch) return action.value == value;
  if (action.kind != ActionKind::run && action.kind != ActionKind::replay) return false;
  const PhysicalOperation& op = operation_of(graph, action);
  return std::find(op.writes.begin(), op.writes.end(), value) != op.writes.end();
}

bool touches(const PhysicalGraph& graph, const Action& action, ValueId value) {
  if (action.kind != ActionKind::run && action.kind != ActionKind::replay)
    return action.value == value;
  const PhysicalOperation& op = operation_of(graph, action);
  return makes(graph, action, value) ||
         std::find(op.reads.begin(), op.reads.end(), value) != op.reads.end();
}

// Value by value, action by action.
std::multiset<Stay> slow_lifetimes(const PhysicalGraph& graph, const std::vector<Action>& actions) {
  std::multiset<Stay> stays;
  for (std::uint32_t i = 0; i < graph.values.size(); ++i) {
    const ValueId value{i};
    if (is_persistent(graph.value(value).kind)) {
      stays.insert({i, 0, static_cast<std::int32_t>(actions.size())});
      continue;
    }
    std::int32_t begin = -1;
    std::int32_t end = -1;
    for (std::int32_t at = 0; at < static_cast<std::int32_t>(actions.size()); ++at) {
      const Action& action = actions[static_cast<std::size_t>(at)];
      if (makes(graph, action, value)) {
        if (begin >= 0) stays.insert({i, begin, end});
        begin = at;
      }
      if (touches(graph, action, value)) end = at + 1;
    }
    if (begin >= 0) stays.insert({i, begin, end});
  }
  return stays;
}

void check_lifetimes(const MemoryPlan& plan, const PhysicalGraph& graph, bool in_place) {
  std::multiset<Stay> stays;
  for (const Residency& stay : plan.residencies) {
    if (stay.over >= 0) CHECK(in_place);
    if (stay.value != kWorkspace) stays.insert({index(stay.value), stay.begin, stay.end});
  }
  CHECK(stays == slow_lifetimes(graph, plan.actions));
}

// Action by action: the bytes of all that is there, of what is in place one.
std::int64_t slow_peak(const MemoryPlan& plan, const PhysicalGraph& graph) {
  std::int64_t peak = 0;
  for (std::int32_t at = 0; at < static_cast<std::int32_t>(plan.actions.size()); ++at) {
    std::int64_t live = 0;
    for (const Residency& stay : plan.residencies) {
      const bool persists = stay.value != kWorkspace && is_persistent(graph.value(stay.value).kind);
      const std::int32_t begin = stay.begin + (stay.over >= 0 ? 1 : 0);
      if (!persists && begin <= at && at < stay.end) live += stay.bytes;
    }
    peak = std::max(peak, live);
  }
  return peak;
}

struct Counts {
  int offloads = 0;
  int replays = 0;
  int in_place = 0;
};

void note(const MemoryPlan& plan, Counts& counts) {
  for (const Action& action : plan.actions) {
    counts.offloads += action.kind == ActionKind::offload ? 1 : 0;
    counts.replays += action.kind == ActionKind::replay ? 1 : 0;
  }
  for (const Residency& stay : plan.residencies) counts.in_place += stay.over >= 0 ? 1 : 0;
}

TEST_CASE("schedule: whatever is decided, the plan and its program are right") {
  Counts counts;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    RandomSource random(seed);
    const PhysicalGraph graph = random_graph(seed, random);
    const ValueUses uses = find_uses(graph);
    const PersistentLayout persistent = layout_persistent(graph);
    CostModel cost = estimate_cost(graph);
    cost.offload_bytes_per_s *= 0.01 * static_cast<double>(1 + random.below(100));
    for (int number = 0; number < 8; ++number) {
      INFO("seed " << seed << ", decisions " << number);
      const Decisions decisions = test::random_decisions(graph, uses, random);
      const DraftSchedule draft = draft_schedule(graph, uses, decisions);
      const double fill = 0.7 + 0.1 * static_cast<double>(random.below(4));
      const std::vector<Action> actions = place_copies(graph, cost, decisions, draft, fill);
      MemoryPlan plan;
      REQUIRE_NOTHROW(plan = finish_plan(graph, "random", decisions, actions, persistent));
      REQUIRE_NOTHROW(lower(graph, plan));
      check_lifetimes(plan, graph, decisions.in_place);
      const std::int64_t peak = slow_peak(plan, graph);
      CHECK(plan.max_live_bytes == persistent.bytes + peak);
      CHECK(plan.arena_bytes >= plan.max_live_bytes);
      CHECK(plan.host_bytes == draft.host_bytes);
      if (decisions.copy_style == CopyStyle::gated) CHECK(peak <= draft.peak_bytes);
      const std::vector<std::int64_t> live =
          live_bytes(plan.residencies, plan.actions.size(), graph);
      CHECK(live[static_cast<std::size_t>(plan.peak_action)] == peak);
      note(plan, counts);
    }
  }
  MESSAGE(counts.offloads << " offloads, " << counts.replays << " replays, " << counts.in_place
                          << " values in place");
  CHECK(counts.offloads > 3000);
  CHECK(counts.replays > 3000);
  CHECK(counts.in_place > 3000);
}

TEST_CASE("schedule: whatever is decided, the bits are those of keep-all") {
  int num_copying = 0;
  for (std::uint64_t seed = 0; seed < 130; ++seed) {
    RandomSource random(seed);
    const test::TrainingCase training{"random", test::parse_network(random_text(seed, random)), 4,
                                      2};
    SessionRequest request = test::training_request(training, "none");
    if (random.chance(30)) request.clip_norm = 0.5;
    const auto solver = test::momentum_solver();
    SessionPlan session = plan_session(training.def, solver.get(), request);
    test::TrainingRun expected(training, test::momentum_solver(), session);
    expected.train(0, 2);

    const ProgramPlan& program = session.main();
    const Decisions decisions =
        test::random_decisions(program.physical, find_uses(program.physical), random);
    const DraftSchedule draft =
        draft_schedule(program.physical, find_uses(program.physical), decisions);
    const MemoryPlan plan = finish_plan(
        program.physical, "random", decisions,
        place_copies(program.physical, program.cost, decisions, draft), session.persistent);
    test::replace_plan(session, ProgramId::train, plan);
    num_copying += plan.host_bytes > 0 ? 1 : 0;
    test::TrainingRun run(training, test::momentum_solver(), session);
    run.train(0, 2);
    INFO("seed " << seed);
    CHECK(run.session().weights_hash() == expected.session().weights_hash());
    CHECK(run.session().measured_peak_bytes() == run.plan().planned_peak_bytes);
    CHECK(run.session().measured_host_bytes() == run.plan().host_bytes);
    CHECK(run.session().allocations_after_start() == 0);
  }
  CHECK(num_copying > 80);
}

TEST_CASE("schedule: what cannot be computed again is refused by name") {
  const PhysicalGraph graph = test::physical_training(test::parse_network(test::kSmallResidual), 2);
  const ValueUses uses = find_uses(graph);
  Decisions decisions;
  decisions.retention.assign(graph.values.size(), Retention::keep);
  for (const ValueId value : uses.candidates)
    if (graph.value(value).name == "bn1:saved0")
      decisions.retention[index(value)] = Retention::recompute;
  CHECK_THROWS_WITH_AS(draft_schedule(graph, uses, decisions),
                       doctest::Contains("bn1:saved0 cannot be computed again"), PlanError);
}

}  // namespace
}  // namespace layup
