// SPDX-License-Identifier: Apache-2.0
// A plan never changes a result: the same bits after ten steps under every policy and budget, with
// slow links, across a resume, in micro-batches; and each run keeps what its plan promised.
#include <doctest/doctest.h>

#include "apps/checkpoint.h"
#include "engine/error.h"
#include "memory/policy.h"
#include "tests/support/check_outcome.h"
#include "tests/support/networks.h"
#include "tests/support/temp_folder.h"

namespace layup {
namespace {

using test::check_outcome;
using test::Outcome;
using test::TrainingCase;
using test::TrainingRun;

struct Seen {
  std::int64_t host_bytes = 0;
  int replays = 0;
};

// Every policy at `num_budgets` budgets, and `auto` at `length`.
void check_policies(const TrainingCase& training, const SessionRequest& base, int num_budgets,
                    int length, Seen& seen) {
  SessionRequest request = base;
  request.policy = "none";
  request.budget_bytes.reset();
  const Outcome expected = test::run_steps(training, request);
  check_outcome(expected, expected);
  for (const std::string& policy : policy_names()) {
    request.policy = policy;
    std::int64_t smallest = 0;
    for (const std::int64_t budget :
         test::budget_ladder(training, request, policy == "auto" ? length : num_budgets)) {
      INFO(test::label(training) << ", policy " << policy << ", budget " << budget);
      request.budget_bytes = budget;
      const Outcome outcome = test::run_steps(training, request);
      check_outcome(outcome, expected);
      CHECK(outcome.planned_bytes <= budget);
      seen.host_bytes = std::max(seen.host_bytes, outcome.host_bytes);
      seen.replays = std::max(seen.replays, outcome.num_replays);
      smallest = budget;
    }
    INFO(test::label(training) << ", policy " << policy << ", below " << smallest);
    request.budget_bytes = smallest - 1;
    CHECK_THROWS_AS(test::run_steps(training, request), PlanError);
    request.budget_bytes.reset();
  }
}

TEST_CASE("bits: every policy at three budgets, auto on a ladder") {
  for (const TrainingCase& training : test::short_cases()) {
    Seen seen;
    check_policies(training, test::training_request(training, "none"), 3, 5, seen);
    INFO(test::label(training));
    CHECK(seen.host_bytes > 0);
    CHECK(seen.replays > 0);
  }
}

TEST_CASE("bits: with a partial batch, evaluation, micro-batches with a tail, and clipping") {
  for (TrainingCase training : test::short_cases({"skips", "vgg_like"})) {
    training.batch *= 3;
    SessionRequest request = test::training_request(training, "none");
    request.last_batch = training.batch - 2;
    request.evaluation_batch = training.batch;
    request.micro_batch = training.batch * 3 / 8;  // 24 as 9+9+6, 22 as 9+9+4
    request.clip_norm = 0.5;
    Seen seen;
    check_policies(training, request, 2, 2, seen);
    INFO(test::label(training));
    CHECK(seen.host_bytes > 0);
  }
}

TEST_CASE("bits: a slow link changes none") {
  for (const TrainingCase& training : test::short_cases({"vgg_like", "bottlenecks", "skips"})) {
    SessionRequest request = test::training_request(training, "none");
    const Outcome expected = test::run_steps(training, request);
    for (const std::string policy : {"layup", "vdnn_all"}) {
      INFO(test::label(training) << ", policy " << policy);
      request.policy = policy;
      request.budget_bytes = test::minimum_bytes(training, request);
      const Outcome outcome =
          test::run_steps(training, request, LinkPace{.bytes_per_s = 200e6, .latency_us = 50});
      check_outcome(outcome, expected);
      CHECK(outcome.host_bytes > 0);
      request.budget_bytes.reset();
    }
  }
}

TEST_CASE("bits: going on under another policy and budget changes none") {
  for (const TrainingCase& training : test::short_cases({"vgg_like", "bottlenecks", "skips"})) {
    const Outcome expected = test::run_steps(training, test::training_request(training, "none"));
    const test::TempFolder folder;
    RunState state;
    state.batch = training.batch;
    state.device = to_string(training.device);
    const std::vector<std::pair<std::string, std::int64_t>> parts = {
        {"layup", 3}, {"none", 5}, {"vdnn_all", 6}, {"sublinear", 8}, {"auto", 10}};
    for (const auto& [policy, end] : parts) {
      INFO(test::label(training) << ", policy " << policy << " from step " << state.step);
      SessionRequest request = test::training_request(training, policy);
      request.budget_bytes = test::minimum_bytes(training, request);
      TrainingRun run(training, request);
      state.solver = run.solver().params().dump();
      if (state.step > 0) {
        const LoadedCheckpoint loaded = load_checkpoint(folder.path(), run.session(), state);
        REQUIRE(loaded.state.step == state.step);
      }
      run.train(state.step, end);
      state.step = end;
      save_checkpoint(folder.path(), run.session(), state, 1);
      if (end == test::kStepsOfARun) CHECK(run.session().weights_hash() == expected.hash);
      CHECK(run.session().measured_peak_bytes() == run.plan().planned_peak_bytes);
    }
  }
}

TEST_CASE("bits: updates after backward give the same ones") {
  for (const TrainingCase& training : test::short_cases({"skips", "vgg_like"})) {
    INFO(test::label(training));
    SessionRequest request = test::training_request(training, "layup");
    const Outcome expected = test::run_steps(training, request);
    request.updates_inside_backward = false;
    check_outcome(test::run_steps(training, request), expected);
  }
}

TEST_CASE("bits: the hash tells one step and one seed of dropout from another") {
  const TrainingCase training = test::short_cases().back();
  SessionRequest request = test::training_request(training, "none");
  TrainingRun a(training, request);
  TrainingRun b(training, request);
  a.train(0, 2);
  b.train(0, 1);
  CHECK(a.session().weights_hash() != b.session().weights_hash());
  StepState state = b.state(1);
  state.seed = 12;
  b.stage(1);
  b.session().run(ProgramId::train, state);
  CHECK(a.session().weights_hash() != b.session().weights_hash());
}

}  // namespace
}  // namespace layup
