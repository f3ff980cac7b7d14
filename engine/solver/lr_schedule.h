// SPDX-License-Identifier: Apache-2.0
// The learning rate as a pure function of the step, so that a resumed run goes on where it was.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/json_reader.h"

namespace layup {

//   constant   lr
//   multistep  lr * gamma^(milestones at or before this step)
//   cosine     min_lr + (lr - min_lr) * (1 + cos(pi * t / steps)) / 2; min_lr from `steps` on
// Warm-up: lr * (step + 1) / warmup_steps while step < warmup_steps; the cosine then runs over the
// remaining steps (t = step - warmup_steps, length steps - warmup_steps); milestones count from
// step 0.
struct LrSchedule {
  enum class Kind : std::uint8_t { constant, multistep, cosine };
  Kind kind = Kind::constant;
  double lr = 0;
  double gamma = 0.1;
  double min_lr = 0;
  std::vector<std::int64_t> milestones;  // in steps
  std::vector<double> milestone_epochs;  // resolved by `resolve`
  std::int64_t steps = 0;                // cosine; 0: the whole run
  std::int64_t warmup_steps = 0;
  double warmup_epochs = 0;

  // Turns epochs into steps and fills in the length of the run.
  LrSchedule resolve(std::int64_t steps_per_epoch, std::int64_t total_steps) const;
  // Whether its rates depend on how long the run is (before it is resolved).
  bool follows_run_length() const { return kind == Kind::cosine && steps == 0; }
  double at(std::int64_t step) const;  // of a resolved schedule
};

// Reads {"type", ...} of `lr`; a missing section is constant.
LrSchedule read_lr_schedule(JsonReader& solver, double lr);

}  // namespace layup
