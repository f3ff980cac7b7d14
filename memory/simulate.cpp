// SPDX-License-Identifier: Apache-2.0
#include "memory/simulate.h"

#include <algorithm>

namespace layup {

namespace {

// The copies of one direction: one after the other.
struct CopyStream {
  double end_ms = 0;        // of all that were given to it
  double interference = 0;  // the most of those that are not done
};

// When `work_ms` of computation that begins at `start_ms` are done, slower while copies run.
double end_of_work(double start_ms, double work_ms, const CopyStream& a, const CopyStream& b) {
  const CopyStream& first = a.end_ms < b.end_ms ? a : b;
  const CopyStream& last = a.end_ms < b.end_ms ? b : a;
  double now = start_ms;
  double left = work_ms;
  const auto run_until = [&](double end_ms, double speed) {
    const double ms = std::min(std::max(0.0, end_ms - now), left / speed);
    now += ms;
    left = std::max(0.0, left - ms * speed);
  };
  run_until(first.end_ms, (1 - first.interference) * (1 - last.interference));
  run_until(last.end_ms, 1 - last.interference);
  return now + left;
}

}  // namespace

Timeline simulate(const PhysicalGraph& graph, const CostModel& cost,
                  const std::vector<Action>& actions) {
  Timeline timeline;
  timeline.intervals.resize(actions.size());
  std::vector<double> copied(graph.values.size(), 0);  // when the latest copy of a value ends
  double compute = 0;
  CopyStream copy_out;
  CopyStream copy_in;
  const auto copy = [&](CopyStream& stream, const Action& action, double ready_ms, double ms) {
    const double start = std::max(stream.end_ms, ready_ms);
    const double own = cost.interference_of(action.tier);
    stream = {start + ms, stream.end_ms > compute ? std::max(stream.interference, own) : own};
    copied[index(action.value)] = stream.end_ms;
    timeline.transfer_ms += ms;
    return Interval{start, stream.end_ms};
  };
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
        interval = {compute, end_of_work(compute, ms, copy_out, copy_in)};
        compute = interval.end_ms;
        if (!is_run) timeline.recompute_ms += ms;
        break;
      }
      case ActionKind::offload:
        interval = copy(copy_out, action, compute,
                        cost.offload_ms(graph.value(action.value).bytes, action.tier));
        break;
      case ActionKind::prefetch:
        interval = copy(copy_in, action, std::max(compute, copied[index(action.value)]),
                        cost.prefetch_ms(graph.value(action.value).bytes, action.tier));
        break;
      case ActionKind::wait_offload:
      case ActionKind::wait_prefetch:
        interval.start_ms = compute;
        stall_until(copied[index(action.value)]);
        interval.end_ms = compute;
        break;
    }
  }
  timeline.step_ms = std::max({compute, copy_out.end_ms, copy_in.end_ms});
  return timeline;
}

}  // namespace layup
