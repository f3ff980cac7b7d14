// SPDX-License-Identifier: Apache-2.0
// The training loop: batches in, steps, evaluation, checkpoints, log. It prints nothing; what a
// person should see goes to an observer.
#pragma once

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>

#include "apps/config.h"
#include "scheduler/session.h"

namespace layup {

struct RunOptions {
  DeviceKind device = DeviceKind::reference;
  int threads = 1;
  std::optional<LinkPace> link;       // --emulate-link
  std::optional<std::int64_t> steps;  // stop after so many steps, counted from step 0
  std::filesystem::path out;          // checkpoints; empty: none
  std::filesystem::path resume;       // a folder with checkpoints, or one of them
  std::filesystem::path init;         // weights to start from
  std::filesystem::path log;          // JSONL; empty: none, or <out>/log.jsonl with `out`
  std::filesystem::path trace;        // Chrome trace of one step; empty: none
  // Set (to a signal number) by a signal handler: finish the step, save, return.
  const std::atomic<int>* stop = nullptr;
};

struct StepReport {
  std::int64_t step = 0;  // steps done
  std::int64_t end_step = 0;
  std::int64_t epoch = 0;
  std::int64_t num_epochs = 0;
  double loss = 0;
  double learning_rate = 0;
  double images_per_s = 0;  // smoothed
  double eta_s = 0;
};

struct EvaluationReport {
  std::int64_t epoch = 0;  // whole epochs done
  std::int64_t step = 0;   // steps done
  bool ends_epoch = true;  // false: a run that stops in the middle of one
  double loss = 0;
  double accuracy = 0;  // of the test set, 0 to 1
};

class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void on_plan(const SessionPlan& /*plan*/) {}
  virtual void on_step(const StepReport& /*report*/) {}
  virtual void on_evaluation(const EvaluationReport& /*report*/) {}
  virtual void on_message(const std::string& /*message*/) {}  // warnings, saved files
};

struct TrainResult {
  Json summary;    // the last line of the log
  int signal = 0;  // that stopped the run; 0: it came to its end
};

// Everything that can be refused is refused before step 0. Throws ConfigError, GraphError,
// DataError, PlanError, DeviceError; DivergedError naming step and layer (nothing is saved then).
TrainResult train(const RunConfig& config, const RunOptions& options, TrainObserver& observer);

// The plan that `train` would make, for `layup plan` and --plan-only.
SessionPlan plan_run(const RunConfig& config, const RunOptions& options, const std::string& policy,
                     const MachineProfile* machine = nullptr);

// Evaluates weights (RunOptions::init or ::resume) on the test set.
EvaluationReport evaluate(const RunConfig& config, const RunOptions& options);

}  // namespace layup
