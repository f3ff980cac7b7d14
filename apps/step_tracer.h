// SPDX-License-Identifier: Apache-2.0
// --trace: times one training step of a run, the third, or the last one if there are fewer.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "scheduler/step_trace.h"

namespace layup {

class StepTracer {
 public:
  // An empty path: nothing is traced. Throws ConfigError if the file cannot be written there.
  explicit StepTracer(std::filesystem::path path);

  // For Session::train_step, to be called before each; empty when the step is not to be timed.
  std::span<TimeSpan> begin_step(const SessionPlan& plan, std::int64_t count);
  // Replaces the file at once. False if there is nothing to write. Throws DataError.
  bool write() const;

 private:
  std::filesystem::path path_;
  int num_steps_ = 0;
  // Of the latest step that was timed.
  std::vector<const ProgramPlan*> programs_;
  std::vector<TimeSpan> times_;
};

}  // namespace layup
