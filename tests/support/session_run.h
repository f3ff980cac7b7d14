// SPDX-License-Identifier: Apache-2.0
// A session with random batches in both slots, run program by program.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "scheduler/session.h"
#include "tests/support/networks.h"
#include "tests/support/training_run.h"

namespace layup::test {

class SessionRun {
 public:
  // On a device of the request's kind, or on the one given.
  SessionRun(const GraphDef& def, const SessionRequest& request, Device* device = nullptr,
             void* arena = nullptr)
      : own_device_(device == nullptr ? make_cpu_device(request.device) : nullptr),
        device_(device == nullptr ? *own_device_ : *device),
        solver_(momentum_solver()),
        plan_(plan_session(def, solver_.get(), request)),
        session_(device_, plan_, solver_.get(), arena) {
    session_.initialize(3);
    RandomSource random(5);
    for (int slot = 0; slot < kStagingSlots; ++slot) fill_slot(session_, slot, 3, random);
  }

  static StepState state(std::int64_t step) {
    StepState state;
    state.step = step;
    state.seed = 11;
    state.learning_rate = 0.02F;
    state.input_slot = static_cast<std::int32_t>(step % kStagingSlots);
    return state;
  }
  StepResult step(ProgramId id, std::int64_t step) { return session_.run(id, state(step)); }
  // Everything that a run does, in a few steps, from program to program: its losses.
  std::vector<float> run_all() {
    std::vector<float> losses;
    for (const auto& [id, number] :
         {std::pair{ProgramId::train, 0}, std::pair{ProgramId::evaluate, 0},
          std::pair{ProgramId::train, 1}, std::pair{ProgramId::train_last, 2},
          std::pair{ProgramId::evaluate, 3}, std::pair{ProgramId::evaluate_last, 3},
          std::pair{ProgramId::train, 4}})
      losses.push_back(step(id, number).loss);
    return losses;
  }
  const PersistentTensor& parameter(const std::string& name) const {
    for (const PersistentTensor& tensor : session_.parameters())
      if (tensor.name == name) return tensor;
    throw std::logic_error("no parameter " + name);
  }
  void set(const std::string& name, std::size_t i, float value) {
    std::vector<float> values = session_.read(parameter(name));
    values.at(i) = value;
    session_.write(parameter(name), values);
  }
  std::vector<float> all_parameters() const { return test::all_parameters(session_); }
  Session& session() { return session_; }
  const SessionPlan& plan() const { return plan_; }
  Device& device() { return device_; }

 private:
  std::unique_ptr<Device> own_device_;
  Device& device_;
  std::unique_ptr<Solver> solver_;
  SessionPlan plan_;
  Session session_;
};

}  // namespace layup::test
