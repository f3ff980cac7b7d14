// SPDX-License-Identifier: Apache-2.0
// The long form of bit_equality_test: networks of published size, every policy at three budgets,
// and `auto` on a ladder of ten from what keep-all needs down to the smallest that works.
#include <doctest/doctest.h>

#include "memory/policy.h"
#include "tests/support/check_outcome.h"

namespace layup {
namespace {

using test::check_outcome;
using test::Outcome;

TEST_CASE("bits: networks of published size, every policy, ten budgets of auto") {
  for (const test::TrainingCase& training : test::long_cases()) {
    SessionRequest request = test::training_request(training, "none");
    const Outcome expected = test::run_steps(training, request);
    std::int64_t smallest = expected.planned_bytes;
    for (const std::string& policy : policy_names()) {
      request.policy = policy;
      request.budget_bytes.reset();
      for (const std::int64_t budget :
           test::budget_ladder(training, request, policy == "auto" ? 10 : 3)) {
        INFO(test::label(training) << ", policy " << policy << ", budget " << budget);
        request.budget_bytes = budget;
        const Outcome outcome = test::run_steps(training, request);
        check_outcome(outcome, expected);
        CHECK(outcome.planned_bytes <= budget);
        smallest = std::min(smallest, budget);
      }
    }
    MESSAGE(test::label(training) << ": " << expected.planned_bytes << " bytes down to "
                                  << smallest);
    CHECK(smallest < expected.planned_bytes);
  }
}

TEST_CASE("bits: a slow link, at the smallest budget") {
  for (const test::TrainingCase& training : test::long_cases()) {
    if (training.name == "resnet50" || training.name == "vgg16") continue;
    SessionRequest request = test::training_request(training, "none");
    const Outcome expected = test::run_steps(training, request);
    request.policy = "auto";
    request.budget_bytes = test::minimum_bytes(training, test::training_request(training, "layup"));
    INFO(test::label(training));
    check_outcome(
        test::run_steps(training, request, LinkPace{.bytes_per_s = 1e9, .latency_us = 20}),
        expected);
  }
}

}  // namespace
}  // namespace layup
