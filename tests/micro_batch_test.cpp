// SPDX-License-Identifier: Apache-2.0
// A step in parts (5 + 5 + 2 of a batch of 12) is the step on the whole batch: gradients, losses,
// random masks, clipping, and what happens when a part goes wrong.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/networks.h"
#include "tests/support/tolerances.h"
#include "tests/support/training_run.h"

namespace layup {
namespace {

using test::TrainingCase;
using test::TrainingRun;

// Without batch norm, whose statistics are those of the part.
TrainingCase network(bool with_dropout) {
  const std::string dropout =
      with_dropout ? R"({"name": "drop", "type": "dropout", "p": 0.4},)" : "";
  return {"net",
          test::parse_network(R"({"name": "net", "input": {"shape": [2, 8, 8]}, "layers": [
    {"name": "conv1", "type": "conv2d", "out_channels": 6, "kernel": 3, "padding": 1},
    {"name": "relu1", "type": "relu"},
    {"name": "conv2", "type": "conv2d", "out_channels": 6, "kernel": 3, "padding": 1},
    {"name": "sum", "type": "add", "inputs": ["conv2", "relu1"]},
    {"name": "pool", "type": "max_pool2d", "kernel": 2},)" +
                              dropout + R"(
    {"name": "fc", "type": "linear", "out_features": 5},
    {"name": "loss", "type": "softmax_cross_entropy"}]})"),
          5, 12};
}

// Plain descent with a rate of 1: the weights change by the gradient.
std::unique_ptr<TrainingRun> make_run(const TrainingCase& training, std::int64_t micro_batch,
                                      double clip_norm = 0, const std::string& policy = "none") {
  SessionRequest request = test::training_request(training, policy);
  request.micro_batch = micro_batch;
  request.clip_norm = clip_norm;
  auto solver = test::parse_solver(R"({"type": "sgd", "lr": 1, "momentum": 0})").rule;
  SessionPlan plan = plan_session(training.def, solver.get(), request);
  return std::make_unique<TrainingRun>(training, std::move(solver), std::move(plan));
}

StepResult descend(TrainingRun& run, std::int64_t step) {
  run.stage(step);
  StepState state = run.state(step);
  state.learning_rate = 1;
  return run.session().train_step(state, run.plan().request.batch);
}

std::vector<float> gradient_of(TrainingRun& run) {
  const std::vector<float> before = run.all_parameters();
  descend(run, 0);
  std::vector<float> gradient = run.all_parameters();
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = before[i] - gradient[i];
  return gradient;
}

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return std::sqrt(sum);
}

void check_close(const std::vector<float>& got, const std::vector<float>& wanted, double factor) {
  REQUIRE(got.size() == wanted.size());
  double most = 0;
  double error = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    most = std::max(most, std::abs(factor * wanted[i]));
    error = std::max(error, std::abs(got[i] - factor * wanted[i]));
  }
  INFO("error " << error << " of " << most);
  CHECK(most > 1e-3);
  CHECK(error <= kMicroBatch * most);
}

TEST_CASE("micro-batches: gradients and weights are those of the whole batch") {
  for (const std::int64_t micro_batch : {5, 6, 11, 1}) {
    CAPTURE(micro_batch);
    const auto whole = make_run(network(false), 0);
    const auto parts = make_run(network(false), micro_batch);
    check_close(gradient_of(*parts), gradient_of(*whole), 1);
    // And go on together: nothing is left in the sums.
    const float loss_before = descend(*whole, 1).loss;
    CHECK(descend(*parts, 1).loss == doctest::Approx(loss_before).epsilon(1e-4));
  }
}

TEST_CASE("micro-batches: the programs of a step") {
  const auto run = make_run(network(false), 5);
  const std::vector<StepPart> parts = parts_of_step(run->plan().request, 12);
  REQUIRE(parts.size() == 3);
  CHECK(parts[0].program == ProgramId::micro_first);
  CHECK(parts[1].program == ProgramId::micro_middle);
  CHECK(parts[2].program == ProgramId::micro_tail);
  CHECK(parts[0].count == 5);
  CHECK(parts[1].count == 5);
  CHECK(parts[2].count == 2);
  for (const ProgramId id : {ProgramId::micro_first, ProgramId::micro_middle})
    for (const PhysicalOperation& op : run->plan().at(id)->physical.operations)
      CHECK(op.kind != OpKind::update);
  // In less memory than the batch, gradients in whole included.
  CHECK(run->plan().planned_peak_bytes < make_run(network(false), 0)->plan().planned_peak_bytes);
}

TEST_CASE("micro-batches: the loss is the mean over all samples") {
  const TrainingCase training = network(false);
  const auto parts = make_run(training, 5);
  const StepResult result = descend(*parts, 0);
  double expected = 0;
  std::int64_t correct = 0;
  std::int64_t begin = 0;
  for (const std::int64_t count : {5, 5, 2}) {
    TrainingCase part = training;
    part.batch = count;
    const auto alone = make_run(part, 0);
    const std::int64_t images = 2 * 8 * 8;
    parts->stage(0);
    std::copy_n(parts->session().staged_images(0) + begin * images, count * images,
                alone->session().staged_images(0));
    std::copy_n(parts->session().staged_labels(0) + begin, count,
                alone->session().staged_labels(0));
    const StepResult own = alone->step_as_staged(0, count);
    expected += static_cast<double>(own.loss) * static_cast<double>(count) / 12;
    correct += own.correct;
    begin += count;
  }
  CHECK(result.loss == doctest::Approx(expected).epsilon(1e-6));
  CHECK(result.correct == correct);
}

TEST_CASE("micro-batches: masks are those of the sample's place in the whole batch") {
  const auto whole = make_run(network(true), 0);
  const auto parts = make_run(network(true), 5);
  check_close(gradient_of(*parts), gradient_of(*whole), 1);
  const float expected = descend(*whole, 1).loss;
  CHECK(descend(*parts, 1).loss == doctest::Approx(expected).epsilon(1e-4));
  // Other masks show far above that.
  const auto other = make_run(network(true), 0);
  gradient_of(*other);
  other->stage(1);
  StepState state = other->state(1);
  state.seed += 1;
  CHECK(std::abs(other->session().train_step(state, 12).loss - expected) > 1e-3 * expected);
}

TEST_CASE("clipping: PyTorch's formula, over all gradients together") {
  const auto plain = make_run(network(false), 0);
  const std::vector<float> gradient = gradient_of(*plain);
  const double total = norm(gradient);
  for (const double clip_norm : {0.25 * total, 0.9 * total}) {
    CAPTURE(clip_norm);
    const auto clipped = make_run(network(false), 0, clip_norm);
    const std::vector<float> got = gradient_of(*clipped);
    check_close(got, gradient, clip_norm / (total + 1e-6));
    CHECK(norm(got) == doctest::Approx(clip_norm).epsilon(1e-4));
    const auto parts = make_run(network(false), 5, clip_norm);
    check_close(gradient_of(*parts), gradient, clip_norm / (total + 1e-6));
  }
  // A norm that is not reached changes not one bit.
  const auto loose = make_run(network(false), 0, 2 * total);
  gradient_of(*loose);
  CHECK(loose->session().weights_hash() == plain->session().weights_hash());
}

TEST_CASE("clipping: updates wait for all gradients") {
  const auto clipped = make_run(network(false), 0, 1);
  const auto plain = make_run(network(false), 0);
  const auto position = [](const ProgramPlan& program, OpKind kind, bool last) {
    std::ptrdiff_t found = -1;
    for (std::size_t i = 0; i < program.plan.actions.size(); ++i)
      if (operation_of(program.physical, program.plan.actions[i]).kind == kind &&
          (last || found < 0))
        found = static_cast<std::ptrdiff_t>(i);
    return found;
  };
  const ProgramPlan& late = clipped->plan().main();
  CHECK(position(late, OpKind::clip_factor, false) > position(late, OpKind::layer, true));
  CHECK(position(late, OpKind::update, false) > position(late, OpKind::clip_factor, true));
  const ProgramPlan& early = plain->plan().main();
  CHECK(position(early, OpKind::update, false) < position(early, OpKind::layer, true));
  // All gradients are there at once, and planned.
  std::int64_t all = 0;
  for (const Parameter& parameter : late.physical.parameters)
    all += late.physical.value(parameter.value).bytes;
  CHECK(late.plan.gradient_bytes >= all);
  CHECK(early.plan.gradient_bytes < all);
}

TEST_CASE("micro-batches: a part that diverges stops the step before any update") {
  for (const double clip_norm : {0.0, 1.0}) {
    const auto run = make_run(network(false), 5, clip_norm, "layup");
    descend(*run, 0);
    const std::string before = run->session().weights_hash();
    run->stage(1);
    run->session().staged_images(1)[6 * 2 * 8 * 8] = std::numeric_limits<float>::infinity();
    const StepResult result = run->step_as_staged(1, 12);
    CHECK(result.failed == kFailedLoss);
    CHECK(result.failed_program == ProgramId::micro_middle);
    CHECK(result.failed_state.first_row == 5);
    CHECK(result.failed_state.first_sample == 5);
    CHECK(run->session().weights_hash() == before);
    CHECK(run->session().explain_failure(result.failed_program, result.failed_state,
                                         result.failed) == "load images");
    CHECK(run->session().weights_hash() == before);
  }
}

TEST_CASE("clipping: a gradient that is not finite stops the step") {
  const auto run = make_run(network(false), 5, 1);
  descend(*run, 0);
  const std::string before = run->session().weights_hash();
  run->stage(1);
  StepState state = run->state(1);
  state.loss_gradient = std::numeric_limits<float>::infinity();
  const StepResult result = run->session().train_step(state, 12);
  CHECK(result.failed >= kFailedGradient);
  CHECK(result.failed_program == ProgramId::micro_tail);
  CHECK(run->session().weights_hash() == before);
}

}  // namespace
}  // namespace layup
