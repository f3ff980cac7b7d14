// SPDX-License-Identifier: Apache-2.0
// What the validators let pass runs right: plans of random networks under every policy are changed
// a little, and each one that is still accepted is run and must end with the same bits.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>

#include "engine/device/recording_device.h"
#include "engine/error.h"
#include "engine/rng.h"
#include "memory/policy.h"
#include "memory/validate_plan.h"
#include "scheduler/lower.h"
#include "scheduler/session.h"
#include "tests/support/networks.h"
#include "tests/support/random_graph.h"

namespace layup {
namespace {

using test::RandomSource;

// Enough for values that policies think worth a copy.
constexpr std::int64_t kBatch = 160;

SessionPlan plan_of(const GraphDef& def, const Solver& solver, const std::string& policy) {
  SessionRequest request;
  request.batch = kBatch;
  request.policy = policy;
  return plan_session(def, &solver, request);
}

std::string hash_after_two_steps(const SessionPlan& plan, const Solver& solver) {
  RecordingDevice device(true);
  Session session(device, plan, &solver);
  session.initialize(1);
  RandomSource random(2);
  for (int slot = 0; slot < kStagingSlots; ++slot) {
    for (int i = 0; i < kBatch * 2 * 8 * 8; ++i)
      session.staged_images(slot)[i] =
          to_unit_float(static_cast<std::uint32_t>(random.bits() >> 32U));
    for (int i = 0; i < kBatch; ++i)
      session.staged_labels(slot)[i] = static_cast<std::int32_t>(random.below(4));
  }
  for (int step = 0; step < 2; ++step) {
    StepState state;
    state.step = step;
    state.learning_rate = 0.1F;
    state.input_slot = step;
    session.run(ProgramId::train, state);
  }
  return session.weights_hash();
}

std::size_t any(RandomSource& random, std::size_t count) {
  return static_cast<std::size_t>(random.below(static_cast<std::int64_t>(count)));
}

bool is_copy(const Action& action) {
  return action.kind != ActionKind::run && action.kind != ActionKind::replay;
}

// Changes the actions; residencies follow, so that many changed plans get past the plan's
// validator and must be judged by what they do.
std::string mutate_actions(MemoryPlan& plan, RandomSource& random) {
  const std::size_t at = any(random, plan.actions.size() - 1);
  std::vector<std::size_t> copies;
  for (std::size_t i = 0; i < plan.actions.size(); ++i)
    if (is_copy(plan.actions[i])) copies.push_back(i);
  if (copies.empty() || random.chance(30)) {
    std::swap(plan.actions[at], plan.actions[at + 1]);
    return "actions " + std::to_string(at) + " and the next swapped";
  }
  const std::size_t copy = copies[any(random, copies.size())];
  Action& action = plan.actions[copy];
  switch (random.below(3)) {
    case 0: {
      const std::size_t other = copies[any(random, copies.size())];
      std::swap(action, plan.actions[other]);
      return "copies " + std::to_string(copy) + " and " + std::to_string(other) + " swapped";
    }
    case 1:
      action.kind = std::array{ActionKind::offload, ActionKind::wait_offload, ActionKind::prefetch,
                               ActionKind::wait_prefetch}[any(random, 4)];
      return "copy " + std::to_string(copy) + " of another kind";
    default:
      action.value = plan.actions[copies[any(random, copies.size())]].value;
      return "copy " + std::to_string(copy) + " of another value";
  }
}

std::string mutate(MemoryPlan& plan, RandomSource& random) {
  Residency& stay = plan.residencies[any(random, plan.residencies.size())];
  const Residency& other = plan.residencies[any(random, plan.residencies.size())];
  const std::int32_t sign = random.chance(50) ? 1 : -1;
  switch (random.below(7)) {
    case 0: stay.offset = other.offset; return "an offset of another residency";
    case 1: stay.offset += sign * kAlignment; return "an offset moved";
    case 2: stay.begin += sign; return "a begin moved";
    case 3: stay.end += sign; return "an end moved";
    case 4:
      if (plan.host_bytes > 0) {
        std::int64_t& host = plan.host_offsets[any(random, plan.host_offsets.size())];
        if (host >= 0) host = kAlignment * random.below(plan.host_bytes / kAlignment);
      }
      return "a place on the host";
    default: return mutate_actions(plan, random);
  }
}

// False if a validator refuses the plan.
bool put_into(SessionPlan& session, const MemoryPlan& plan) {
  ProgramPlan& program = *session.programs[static_cast<int>(ProgramId::train)];
  try {
    validate_plan(plan, program.physical);
    program.program = lower(program.physical, plan);
  } catch (const PlanError&) {
    return false;
  }
  program.plan = plan;
  return true;
}

TEST_CASE("plan: what the validators accept gives the same bits") {
  int num_accepted = 0;
  int num_refused = 0;
  int num_copies = 0;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    RandomSource random(seed);
    const GraphDef def =
        test::parse_network(test::random_network(seed, 6 + static_cast<int>(random.below(12))));
    const auto solver = test::momentum_solver();
    const std::string expected = hash_after_two_steps(plan_of(def, *solver, "none"), *solver);
    for (const Policy& policy : builtin_policies()) {
      SessionPlan session = plan_of(def, *solver, policy.name);
      const MemoryPlan plan = session.main().plan;
      num_copies += static_cast<int>(std::ranges::count_if(plan.actions, is_copy));
      for (int change = 0; change < 20; ++change) {
        MemoryPlan changed = plan;
        const std::string what = mutate(changed, random);
        INFO("seed " << seed << ", policy " << policy.name << ", change " << change << ": "
                     << what);
        if (!put_into(session, changed)) {
          ++num_refused;
          continue;
        }
        ++num_accepted;
        CHECK(hash_after_two_steps(session, *solver) == expected);
      }
    }
  }
  MESSAGE(num_accepted << " accepted, " << num_refused << " refused");
  CHECK(num_accepted > 200);
  CHECK(num_refused > 600);
  CHECK(num_copies > 100);
}

}  // namespace
}  // namespace layup
