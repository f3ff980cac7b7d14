// SPDX-License-Identifier: Apache-2.0
// From a configuration to the plan of its run.
#pragma once

#include <optional>
#include <string>

#include "apps/trainer.h"
#include "memory/calibration.h"

namespace layup {

// Everything about the run's programs but the policy's costs.
SessionRequest request_for(const RunConfig& config, const RunOptions& options);

// Plans that copy or recompute are only as good as the costs they are made from.
bool needs_costs(const MemoryOptions& memory);

// The saved calibration of this machine; what this network and its file tier need and it lacks is
// measured now, and saved.
Calibration complete_calibration(const RunConfig& config, const RunOptions& options,
                                 TrainObserver& observer);

// A paced link bounds what the calibration says of copies.
void limit_copies(Calibration& calibration, const LinkPace& link);

// With costs of this machine (an estimate if there is no calibration). Costs decide what is fast
// and, at the smallest budgets, a little of what fits: where the plan by calibrated costs does not
// fit, that by estimated ones is taken if it does. So what `layup plan` finds feasible on a machine
// that has not been measured stays feasible when it is. A paced link limits copies; without a host
// budget the host tier is bounded by the memory available.
SessionPlan plan_with_costs(const RunConfig& config, const RunOptions& options,
                            const std::string& policy, std::optional<Calibration> calibration);

}  // namespace layup
