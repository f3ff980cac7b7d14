// SPDX-License-Identifier: Apache-2.0
// A planned run on a device: owns the arena, binds the programs, runs steps. After it is built
// nothing is allocated.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "engine/step_state.h"
#include "scheduler/executor.h"
#include "scheduler/session_plan.h"

namespace layup {

struct StepResult {
  float loss = 0;  // sum of the network's losses (each a mean over the batch)
  std::int64_t correct = 0;
  std::int32_t failed = 0;  // StepState::failed
  // Of a training step that failed: the part that did.
  ProgramId failed_program = ProgramId::train;
  StepState failed_state;
};

// A tensor that lives from step to step; read and written through the session, since the device may
// lay it out in its own way.
struct PersistentTensor {
  std::string name;
  Shape shape;
  ValueId value{};

  std::int64_t count() const { return num_elements(shape); }
};

class Session {
 public:
  // `device`, `plan` and `solver` (null for evaluation) must outlive the session. Throws PlanError
  // if the plan does not fit, DeviceError if the memory cannot be had. With `arena`, at least
  // planned_peak_bytes of the caller's memory, kAlignment-aligned, is used instead.
  Session(Device& device, const SessionPlan& plan, const Solver* solver, void* arena = nullptr);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  // Fills parameters and buffers; solver state becomes zero.
  void initialize(std::uint64_t seed);

  // Where the loader puts batches: kStagingSlots slots of staging_batch samples.
  float* staged_images(int slot) const;
  std::int32_t* staged_labels(int slot) const;

  // Runs one step on the batch in state.input_slot. Parameters change only in training programs.
  // `times`, one per instruction of the program or none, get when each ran.
  StepResult run(ProgramId id, const StepState& state, std::span<TimeSpan> times = {});

  // Runs a training step on the first `count` samples of the slot, in parts if the plan splits
  // batches: `loss` is the mean over all of them. Stops after a part that failed. `times`: as in
  // run, of all parts (parts_of_step) one after the other.
  StepResult train_step(const StepState& state, std::int64_t count, std::span<TimeSpan> times = {});

  // After a step whose result says that the loss is not finite: repeats it operation by operation
  // and names the first one that gives a value that is not finite, "conv3 forward". After one whose
  // gradient failed: names the parameter.
  std::string explain_failure(ProgramId id, StepState state, std::int32_t failed);

  // In the order of the network.
  const std::vector<PersistentTensor>& parameters() const { return parameters_; }
  const std::vector<PersistentTensor>& buffers() const { return buffers_; }
  const std::vector<PersistentTensor>& solver_states() const { return solver_states_; }

  // The first persistent tensor that holds a value that is not finite; empty if all are finite.
  std::string find_not_finite() const;

  // In logical order, count() values; not while a step runs.
  void read(const PersistentTensor& tensor, std::span<float> to) const;
  std::vector<float> read(const PersistentTensor& tensor) const;
  void write(const PersistentTensor& tensor, std::span<const float> from);

  // Covers parameters and BN buffers in canonical order: 16 hexadecimal digits.
  std::string weights_hash() const;

  // What was obtained from the device, and from the heap while steps ran (counted by code that
  // does not read the plan).
  std::int64_t measured_peak_bytes() const;
  std::int64_t allocations_after_start() const;
  std::int64_t measured_host_bytes() const { return device_.host_counters().peak_bytes; }
  // The process's RSS after planning and kernel creation, before the arena was touched.
  std::int64_t base_rss_bytes() const { return base_rss_bytes_; }
  // What touching all memory for the first time took; steps find it there.
  double fault_in_ms() const { return fault_in_ms_; }

  const SessionPlan& plan() const { return plan_; }

 private:
  void bind(ProgramId id);
  void prepare_device();
  void collect_tensors();
  void give_back();
  char* at(const PhysicalGraph& graph, ValueId value) const;

  Device& device_;
  const SessionPlan& plan_;
  const Solver* solver_;
  char* arena_ = nullptr;
  char* host_ = nullptr;  // the host tier: one block
  bool owns_arena_ = false;
  StepState* state_ = nullptr;  // at the start of the arena
  BoundProgram programs_[kNumPrograms];
  std::vector<PersistentTensor> parameters_, buffers_, solver_states_;
  std::int64_t allocations_at_start_ = 0;
  std::int64_t heap_allocations_ = 0;
  std::int64_t heap_peak_bytes_ = 0;
  std::int64_t base_rss_bytes_ = 0;
  double fault_in_ms_ = 0;
};

}  // namespace layup
