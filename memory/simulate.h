// SPDX-License-Identifier: Apache-2.0
// The two-resource timeline: when every action of a plan would happen, by the cost model.
#pragma once

#include <vector>

#include "memory/cost_model.h"
#include "memory/memory_plan.h"

namespace layup {

struct Interval {
  double start_ms = 0;
  double end_ms = 0;
};

struct Timeline {
  double step_ms = 0;
  double recompute_ms = 0;  // work of replays
  double transfer_ms = 0;   // work of copies, both directions
  double stall_ms = 0;      // compute waits for a copy
  // By action: of the work (a run, a replay, the copy that an offload or prefetch starts); empty
  // for waits.
  std::vector<Interval> intervals;
};

Timeline simulate(const PhysicalGraph& graph, const CostModel& cost,
                  const std::vector<Action>& actions);

}  // namespace layup
