// SPDX-License-Identifier: Apache-2.0
// The same training under many plans: what must be the same, and what each run says of itself.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/support/training_run.h"

namespace layup::test {

// Small networks with values that are large enough to be worth a copy, on every device of the
// build; only those of the given names, if there are any.
std::vector<TrainingCase> short_cases(const std::vector<std::string>& names = {});
// Those of published size, for the slow suite.
std::vector<TrainingCase> long_cases();
std::string label(const TrainingCase& training);  // "lenet on cpu"

struct Outcome {
  std::string hash;  // of the weights
  float loss = 0;    // of the last step
  std::int64_t planned_bytes = 0;
  std::int64_t measured_bytes = 0;
  std::int64_t host_bytes = 0;
  std::int64_t measured_host_bytes = 0;
  std::int64_t allocations_after_start = 0;
  int num_replays = 0;  // in the plan of the main program
};

inline constexpr std::int64_t kStepsOfARun = 10;

// Ten steps; the fifth is on the last, partial batch if the request has one, and an evaluation
// follows it if the request asks for evaluation.
Outcome run_steps(const TrainingCase& training, const SessionRequest& request,
                  std::optional<LinkPace> pace = {});
Outcome outcome_of(TrainingRun& run, float loss);

// The bytes of the session's plan, and the smallest budget.
std::int64_t planned_bytes(const TrainingCase& training, const SessionRequest& request);
std::int64_t minimum_bytes(const TrainingCase& training, const SessionRequest& request);

// `count` budgets from the least that works for the request's policy to what keep-all needs (just
// the least if that is more).
std::vector<std::int64_t> budget_ladder(const TrainingCase& training, const SessionRequest& request,
                                        int count);

}  // namespace layup::test
