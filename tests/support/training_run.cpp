// SPDX-License-Identifier: Apache-2.0
#include "tests/support/training_run.h"

#include <algorithm>

#include "engine/rng.h"
#include "memory/validate_plan.h"
#include "scheduler/lower.h"
#include "tests/support/networks.h"
#include "tests/support/random_graph.h"

namespace layup::test {

SessionRequest training_request(const TrainingCase& training, const std::string& policy,
                                std::optional<std::int64_t> budget_bytes) {
  SessionRequest request;
  request.batch = training.batch;
  request.threads = 1;
  request.device = training.device;
  request.policy = policy;
  request.budget_bytes = budget_bytes;
  return request;
}

void replace_plan(SessionPlan& session, ProgramId id, const MemoryPlan& plan) {
  ProgramPlan& program = *session.programs[static_cast<int>(id)];
  validate_plan(plan, program.physical);
  program.program = lower(program.physical, plan);
  program.plan = plan;
  session.planned_peak_bytes = session.host_bytes = session.file_bytes = 0;
  for (const auto& planned : session.programs)
    if (planned) {
      session.planned_peak_bytes = std::max(session.planned_peak_bytes, planned->plan.arena_bytes);
      session.host_bytes = std::max(session.host_bytes, planned->plan.host_bytes);
      session.file_bytes = std::max(session.file_bytes, planned->plan.file_bytes);
    }
}

TrainingRun::TrainingRun(const TrainingCase& training, const SessionRequest& request,
                         std::unique_ptr<Device> device)
    : classes_(training.classes),
      device_(device ? std::move(device) : make_cpu_device(request.device)),
      solver_(momentum_solver()),
      plan_(std::make_unique<SessionPlan>(plan_session(training.def, solver_.get(), request))),
      session_(std::make_unique<Session>(*device_, *plan_, solver_.get())) {
  session_->initialize(3);
}

TrainingRun::TrainingRun(const TrainingCase& training, std::unique_ptr<Solver> solver,
                         SessionPlan plan, std::unique_ptr<Device> device)
    : classes_(training.classes),
      device_(device ? std::move(device) : make_cpu_device(plan.request.device)),
      solver_(std::move(solver)),
      plan_(std::make_unique<SessionPlan>(std::move(plan))),
      session_(std::make_unique<Session>(*device_, *plan_, solver_.get())) {
  session_->initialize(3);
}

void fill_slot(Session& session, int slot, std::int64_t classes, RandomSource& random) {
  const PhysicalGraph& graph = session.plan().main().physical;
  const std::int64_t images =
      num_elements(graph.value(graph.staged_images).spec.shape) / kStagingSlots;
  for (std::int64_t i = 0; i < images; ++i)
    session.staged_images(slot)[i] =
        to_unit_float(static_cast<std::uint32_t>(random.bits() >> 32U));
  for (std::int64_t i = 0; i < graph.staging_batch; ++i)
    session.staged_labels(slot)[i] = static_cast<std::int32_t>(random.below(classes));
}

std::vector<float> all_parameters(const Session& session) {
  std::vector<float> values;
  for (const PersistentTensor& tensor : session.parameters()) {
    const std::vector<float> more = session.read(tensor);
    values.insert(values.end(), more.begin(), more.end());
  }
  return values;
}

void TrainingRun::stage(std::int64_t step) {
  RandomSource random(mix(static_cast<std::uint64_t>(step) + 17));
  fill_slot(*session_, static_cast<int>(step % kStagingSlots), classes_, random);
}

StepState TrainingRun::state(std::int64_t step) const {
  StepState state;
  state.step = step;
  state.seed = 11;
  state.learning_rate = 0.01F;
  state.input_slot = static_cast<std::int32_t>(step % kStagingSlots);
  return state;
}

StepResult TrainingRun::step_as_staged(std::int64_t step, std::int64_t count) {
  return session_->train_step(state(step), count);
}

StepResult TrainingRun::step(std::int64_t step, std::int64_t count) {
  stage(step);
  return step_as_staged(step, count);
}

void TrainingRun::train(std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) step(i, plan_->request.batch);
}

}  // namespace layup::test
