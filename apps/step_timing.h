// SPDX-License-Identifier: Apache-2.0
// How long a training step of a run takes, and each of its operations: `layup time`.
#pragma once

#include <string>
#include <vector>

#include "apps/config.h"
#include "scheduler/session.h"

namespace layup {

struct OperationTime {
  std::string layer;  // of the layer that it belongs to; empty for loads, sums and updates
  std::string name;
  std::string type;  // of the layer, or of the operation: "conv2d", "update"
  std::string pass;  // "forward", "backward_params", "recompute", "-"
  std::string kernel;
  double ms = 0;  // median over the rounds
  double flops = 0;
  double bytes = 0;  // compulsory traffic: every operand once
};

struct StepTiming {
  std::vector<double> step_ms;            // by round
  std::vector<OperationTime> operations;  // in the order of the step, of all its parts
  double stall_ms = 0;                    // median time of a step outside operations

  double median_ms() const;
};

// Fills slot 0 with the first batch of the training data, where it stays.
void stage_first_batch(const RunConfig& config, Session& session);

// Runs `rounds` training steps (and one cold step before them, which does not count) on the batch
// in slot 0. Throws DivergedError if a loss stops being finite.
StepTiming time_steps(const RunConfig& config, Session& session, int rounds);

// A table with a row per operation, then one with a row per type and pass.
std::string timing_to_text(const StepTiming& timing);
// The array `operations` of `layup time --format json`.
Json timing_to_json(const StepTiming& timing);

}  // namespace layup
