// SPDX-License-Identifier: Apache-2.0
#include "memory/simulate.h"

#include <algorithm>

namespace layup {

Timeline simulate(const PhysicalGraph& graph, const CostModel& cost,
                  const std::vector<Action>& actions) {
  Timeline timeline;
  timeline.intervals.resize(actions.size());
  std::vector<double> copied(graph.values.size(), 0);  // when the latest copy of a value ends
  double compute = 0;
  double copy_out = 0;
  double copy_in = 0;
  const auto stall_until = [&](double time) {
    timeline.stall_ms += std::max(0.0, time - compute);
    compute = std::max(compute, time);
  };
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    Interval& interval = timeline.intervals[i];
    switch (action.kind) {
      case ActionKind::run:
      case ActionKind::replay: {
        const bool is_run = action.kind == ActionKind::run;
        const double ms = is_run ? cost.run_ms[action.operation] : cost.replay_ms[action.operation];
        interval = {compute, compute + ms};
        compute += ms;
        if (!is_run) timeline.recompute_ms += ms;
        break;
      }
      case ActionKind::offload: {
        const double ms = cost.offload_ms(graph.value(action.value).bytes, action.tier);
        interval.start_ms = std::max(copy_out, compute);
        interval.end_ms = copy_out = copied[index(action.value)] = interval.start_ms + ms;
        timeline.transfer_ms += ms;
        break;
      }
      case ActionKind::prefetch: {
        const double ms = cost.prefetch_ms(graph.value(action.value).bytes, action.tier);
        interval.start_ms = std::max({copy_in, compute, copied[index(action.value)]});
        interval.end_ms = copy_in = copied[index(action.value)] = interval.start_ms + ms;
        timeline.transfer_ms += ms;
        break;
      }
      case ActionKind::wait_offload:
      case ActionKind::wait_prefetch:
        interval.start_ms = compute;
        stall_until(copied[index(action.value)]);
        interval.end_ms = compute;
        break;
    }
  }
  timeline.step_ms = std::max({compute, copy_out, copy_in});
  return timeline;
}

}  // namespace layup
