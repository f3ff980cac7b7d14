// SPDX-License-Identifier: Apache-2.0
// All programs of a run, planned together before step 0: training, the partial last batch of an
// epoch, evaluation and its partial last batch. They share the offsets of what persists; the
// planned peak is their maximum.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "memory/calibration.h"
#include "memory/plan_memory.h"
#include "scheduler/program.h"

namespace layup {

struct SessionRequest {
  std::int64_t batch = 0;
  std::int64_t micro_batch = 0;       // a step is made in parts of so many samples; 0: whole
  double clip_norm = 0;               // 0: no clipping
  std::int64_t last_batch = 0;        // 0: the data divides evenly
  std::int64_t evaluation_batch = 0;  // 0: no evaluation
  std::int64_t last_evaluation_batch = 0;
  bool is_training = true;  // false: evaluation only
  DeviceKind device = DeviceKind::reference;
  int threads = 1;
  std::string policy = "auto";
  std::optional<std::int64_t> budget_bytes;
  std::optional<std::int64_t> host_budget_bytes;
  // The folder of the file tier, which takes what the host tier cannot; empty: there is none.
  std::filesystem::path spill;
  bool updates_inside_backward = true;
  KernelOptions kernels;
  const MachineProfile* machine = nullptr;  // for `layup plan --machine`: nothing will run
  // Measured costs of this machine; null: an estimate. Not used with a machine profile.
  const Calibration* calibration = nullptr;
};

enum class ProgramId : std::uint8_t {
  train,        // a whole batch
  train_last,   // the last, partial batch of an epoch, if it is not split either
  micro_first,  // of a batch that is split: all but the last part
  micro_middle,
  micro_last,       // the last part, where the batch divides evenly: updates
  micro_tail,       // the last part where it does not
  micro_last_tail,  // likewise, of the last batch of an epoch
  evaluate,
  evaluate_last,
};
inline constexpr int kNumPrograms = 9;
const char* to_string(ProgramId id);

struct ProgramPlan {
  Graph graph;
  PhysicalGraph physical;
  CostModel cost;
  MemoryPlan plan;
  Timeline timeline;  // predicted
  Program program;
  std::string peak_operation;
};

struct SessionPlan {
  SessionRequest request;
  std::optional<ProgramPlan> programs[kNumPrograms];
  PersistentLayout persistent;
  std::int64_t planned_peak_bytes = 0;  // the largest arena: what is obtained from the device
  std::int64_t host_bytes = 0;
  std::int64_t file_bytes = 0;
  bool feasible = true;
  std::optional<std::int64_t> minimum_budget_bytes =
      0;                   // of the device; none: the host cannot hold it
  double planning_ms = 0;  // of the main program: plan, lowering and validators

  const std::optional<ProgramPlan>& at(ProgramId id) const {
    return programs[static_cast<int>(id)];
  }
  // The program that stands for the run in reports: of training the one that updates, or evaluation
  // if that is all.
  const ProgramPlan& main() const;
};

// One program of a step, and the samples that it takes.
struct StepPart {
  ProgramId program = ProgramId::train;
  std::int64_t count = 0;
};
// The programs that a training step on `count` samples runs, in order.
std::vector<StepPart> parts_of_step(const SessionRequest& request, std::int64_t count);

// The part whose program is reported and calibrated: the largest that updates (or evaluation).
StepPart main_part(const SessionRequest& request);

// Graph, kernels and costs of one program, not planned yet. Throws as plan_session.
ProgramPlan prepare_program(const GraphDef& def, const Solver* solver,
                            const SessionRequest& request, const StepPart& part);

// `solver` may be null for evaluation. Throws GraphError for a network that cannot be trained with
// these batches (naming the batch when it is the last one), ConfigError for an unknown policy.
SessionPlan plan_session(const GraphDef& def, const Solver* solver, const SessionRequest& request);

// Throws PlanError unless the plan fits: bytes needed, the operation whose working set breaks it,
// the smallest budget that works.
void require_feasible(const SessionPlan& plan);

}  // namespace layup
