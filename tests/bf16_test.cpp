// SPDX-License-Identifier: Apache-2.0
// Training in bf16 on the cpu device: what lies in memory as what, plans that change no bits, bytes
// as planned, losses like float32's, and where it is refused.
#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "engine/error.h"
#include "engine/graph/device_kernels.h"
#include "memory/policy.h"
#include "scheduler/calibrate.h"
#include "tests/support/check_outcome.h"
#include "tests/support/networks.h"
#include "tests/support/tolerances.h"

namespace layup {
namespace {

using test::check_outcome;
using test::Outcome;
using test::TrainingCase;
using test::TrainingRun;

bool is_there() {
  if (has_bf16(DeviceKind::cpu)) return true;
  MESSAGE("this build or this processor has no bf16");
  return false;
}

SessionRequest request_of(const TrainingCase& training, const std::string& policy,
                          Precision precision = Precision::bf16) {
  SessionRequest request = test::training_request(training, policy);
  request.device = DeviceKind::cpu;
  request.kernels.precision = precision;
  return request;
}

TrainingCase case_of(const std::string& name) { return test::short_cases({name}).at(0); }

SessionPlan plan_of(const TrainingCase& training, const SessionRequest& request) {
  return plan_session(training.def, test::momentum_solver().get(), request);
}

bool is_bf16(const PhysicalValue& value) { return value.layout.element == Element::bf16; }

TEST_CASE("bf16: activations and their gradients are, all else is float32") {
  if (!is_there()) return;
  const TrainingCase training = case_of("bottlenecks");
  const PhysicalGraph graph = plan_of(training, request_of(training, "none")).main().physical;
  const PhysicalGraph wide =
      plan_of(training, request_of(training, "none", Precision::float32)).main().physical;
  int num_narrow = 0;
  for (const PhysicalValue& value : graph.values) {
    CAPTURE(value.name);
    if (value.kind != ValueKind::activation && value.kind != ValueKind::gradient &&
        value.kind != ValueKind::input && value.kind != ValueKind::carry)
      CHECK(!is_bf16(value));
    num_narrow += is_bf16(value) ? 1 : 0;
  }
  CHECK(num_narrow > 30);
  for (const PhysicalValue& value : wide.values) CHECK(!is_bf16(value));
  for (const PhysicalOperation& op : graph.operations) {
    if (op.kind != OpKind::layer || op.cost_kind != CostKind::conv) continue;
    CAPTURE(op.name);
    CHECK(op.kernel.find("bf16") != std::string::npos);
    CHECK(is_bf16(graph.value(op.reads[0])));
    CHECK(is_bf16(graph.value(op.reads[1])));
    CHECK(is_bf16(graph.value(op.writes[0])) == (op.pass != Pass::backward_params));
  }
}

TEST_CASE("bf16: a value takes half the bytes") {
  if (!is_there()) return;
  const TrainingCase training = case_of("bottlenecks");
  const SessionPlan narrow = plan_of(training, request_of(training, "none"));
  const SessionPlan wide = plan_of(training, request_of(training, "none", Precision::float32));
  int compared = 0;
  for (const PhysicalValue& value : narrow.main().physical.values)
    for (const PhysicalValue& other : wide.main().physical.values) {
      if (value.name != other.name || !is_bf16(value) || other.layout.is_plain()) continue;
      CAPTURE(value.name);
      CHECK(value.bytes == round_up(other.bytes / 2, kAlignment));
      ++compared;
    }
  CHECK(compared > 30);
  CHECK(narrow.planned_peak_bytes < wide.planned_peak_bytes);
}

TEST_CASE("bf16: measured costs are not mixed up with those of float32") {
  if (!is_there()) return;
  const TrainingCase training = case_of("bottlenecks");
  const auto keys = [&](Precision precision) {
    const SessionPlan plan = plan_of(training, request_of(training, "none", precision));
    const PhysicalGraph& graph = plan.main().physical;
    std::set<std::string> found;
    for (const PhysicalOperation& op : graph.operations) {
      bool counts = precision == Precision::float32;
      for (const auto* operands : {&op.reads, &op.writes})
        for (const ValueId id : *operands) counts = counts || is_bf16(graph.value(id));
      if (counts) found.insert(op.cost_key);
    }
    return found;
  };
  const std::set<std::string> wide = keys(Precision::float32);
  const std::set<std::string> narrow = keys(Precision::bf16);
  CHECK(narrow.size() > 20);
  for (const std::string& key : narrow) CHECK(!wide.contains(key));

  const SessionPlan plan = plan_of(training, request_of(training, "none"));
  const auto device = make_cpu_device(DeviceKind::cpu);
  Calibration calibration;
  calibrate(plan.main().graph, plan.main().physical, test::momentum_solver().get(), *device,
            calibration, {});
  CHECK(find_unmeasured(plan.main().physical, calibration).empty());
}

TEST_CASE("bf16: the same bits under every policy, at three budgets") {
  if (!is_there()) return;
  int num_replays = 0;
  std::int64_t host_bytes = 0;
  for (const TrainingCase& training : test::short_cases()) {
    if (training.device != DeviceKind::cpu) continue;
    SessionRequest request = request_of(training, "none");
    const Outcome expected = test::run_steps(training, request);
    CHECK(expected.hash !=
          test::run_steps(training, request_of(training, "none", Precision::float32)).hash);
    for (const std::string& policy : policy_names()) {
      request.policy = policy;
      request.budget_bytes.reset();
      for (const std::int64_t budget : test::budget_ladder(training, request, 3)) {
        INFO(training.name << ", policy " << policy << ", budget " << budget);
        request.budget_bytes = budget;
        const Outcome outcome = test::run_steps(training, request);
        check_outcome(outcome, expected);
        num_replays = std::max(num_replays, outcome.num_replays);
        host_bytes = std::max(host_bytes, outcome.host_bytes);
      }
    }
  }
  CHECK(num_replays > 0);
  CHECK(host_bytes > 0);
}

TEST_CASE("bf16: the same bits in micro-batches, with a partial batch, evaluation and clipping") {
  if (!is_there()) return;
  TrainingCase training = case_of("vgg_like");
  training.batch *= 3;
  SessionRequest request = request_of(training, "none");
  request.last_batch = training.batch - 2;
  request.evaluation_batch = training.batch;
  request.micro_batch = training.batch * 3 / 8;  // 24 as 9+9+6, 22 as 9+9+4
  request.clip_norm = 0.5;
  const Outcome expected = test::run_steps(training, request);
  for (const std::string& policy : policy_names()) {
    INFO("policy " << policy);
    request.policy = policy;
    request.budget_bytes = test::budget_ladder(training, request, 2).back();
    check_outcome(test::run_steps(training, request), expected);
  }
}

TEST_CASE("bf16: learns like float32") {
  if (!is_there()) return;
  for (const char* name : {"bottlenecks", "resnet20"}) {
    const TrainingCase training = case_of(name);
    // The mean loss of two batches in their first steps and in their last.
    const auto train = [&](Precision precision) {
      TrainingRun run(training, request_of(training, "none", precision));
      run.stage(0);
      run.stage(1);
      constexpr std::int64_t kSteps = 60;
      double first = 0;
      double last = 0;
      for (std::int64_t step = 0; step < kSteps; ++step) {
        const double loss = run.step_as_staged(step, training.batch).loss;
        if (step < 2) first += loss / 2;
        if (step >= kSteps - 2) last += loss / 2;
      }
      return std::pair(first, last);
    };
    const auto [first, last] = train(Precision::bf16);
    const auto [wide_first, wide_last] = train(Precision::float32);
    MESSAGE(training.name << ": bf16 " << first << " to " << last << ", float32 " << wide_first
                          << " to " << wide_last);
    CHECK(last < 0.02 * first);
    CHECK(std::abs(last - wide_last) <= kBf16Training * wide_first);
  }
}

TEST_CASE("bf16: what first is not finite is found") {
  if (!is_there()) return;
  const TrainingCase training = case_of("vgg_like");
  TrainingRun run(training, request_of(training, "none"));
  const PersistentTensor& weight = run.session().parameters()[2];
  REQUIRE(weight.name == "conv2.weight");
  run.session().write(weight, std::vector<float>(static_cast<std::size_t>(weight.count()), 1e38F));
  const StepResult result = run.step(0, training.batch);
  CHECK(result.failed != 0);
  CHECK(run.session()
            .explain_failure(ProgramId::train, run.state(0), result.failed)
            .starts_with("conv2 forward"));
}

TEST_CASE("bf16: refused with what to do instead") {
  const TrainingCase training = case_of("skips");
  SessionRequest request = request_of(training, "none");
  request.device = DeviceKind::reference;
  CHECK_THROWS_WITH_AS(plan_of(training, request), doctest::Contains("use --device cpu"),
                       ConfigError);
  if (!has_device(DeviceKind::cpu) || has_bf16(DeviceKind::cpu)) return;
  request.device = DeviceKind::cpu;
  CHECK_THROWS_WITH_AS(plan_of(training, request), doctest::Contains("AVX512_BF16"), DeviceError);
}

}  // namespace
}  // namespace layup
