// SPDX-License-Identifier: Apache-2.0
// Sessions that train on made-up batches, for tests of what a plan may not change.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "scheduler/session.h"
#include "tests/support/random_graph.h"

namespace layup::test {

// What a run trains, and on what.
struct TrainingCase {
  std::string name;
  GraphDef def;
  std::int64_t classes = 0;
  std::int64_t batch = 0;
  DeviceKind device = DeviceKind::reference;
};

// Threads: 1, since more would spin on a busy machine.
SessionRequest training_request(const TrainingCase& training, const std::string& policy,
                                std::optional<std::int64_t> budget_bytes = {});

// Puts a plan of one program in the place of the one that it has. Throws PlanError if a validator
// refuses it.
void replace_plan(SessionPlan& session, ProgramId id, const MemoryPlan& plan);

// A random batch, with labels below `classes`.
void fill_slot(Session& session, int slot, std::int64_t classes, RandomSource& random);
std::vector<float> all_parameters(const Session& session);

// A planned session on a device of its own, of the request's kind (or the one given). The batch of
// a step is a pure function of the number of the step, so that runs can stop and go on.
class TrainingRun {
 public:
  TrainingRun(const TrainingCase& training, const SessionRequest& request,
              std::unique_ptr<Device> device = nullptr);
  // With a plan made before, for this solver.
  TrainingRun(const TrainingCase& training, std::unique_ptr<Solver> solver, SessionPlan plan,
              std::unique_ptr<Device> device = nullptr);

  // Steps [begin, end), each on a whole batch.
  void train(std::int64_t begin, std::int64_t end);
  // One step on the first `count` samples of its batch.
  StepResult step(std::int64_t step, std::int64_t count);
  StepState state(std::int64_t step) const;
  // A step on a batch that the caller has put into slot step % 2.
  StepResult step_as_staged(std::int64_t step, std::int64_t count);
  void stage(std::int64_t step);

  Session& session() { return *session_; }
  const SessionPlan& plan() const { return *plan_; }
  const Solver& solver() const { return *solver_; }
  std::vector<float> all_parameters() const { return test::all_parameters(*session_); }

 private:
  std::int64_t classes_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Solver> solver_;
  std::unique_ptr<SessionPlan> plan_;
  std::unique_ptr<Session> session_;
};

}  // namespace layup::test
