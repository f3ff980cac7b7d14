// SPDX-License-Identifier: Apache-2.0
// The predicted timeline: cases of two streams with times worked out by hand.
#include "memory/simulate.h"

#include <doctest/doctest.h>

namespace layup {
namespace {

// Operations of 1, 2, 4, ... ms; values of 1000, 2000, ... bytes; 1 ms per 1000 bytes out, 2 ms per
// 1000 bytes back, without latency.
struct Case {
  Case() {
    for (int i = 0; i < 4; ++i) {
      graph.operations.emplace_back();
      graph.replays.emplace_back();
      graph.values.emplace_back().bytes = 1000 * (i + 1);
      cost.run_ms.push_back(1 << i);
      cost.replay_ms.push_back(10 * (i + 1));
    }
    cost.offload_bytes_per_s = 1e6;
    cost.prefetch_bytes_per_s = 5e5;
  }
  Timeline simulated(const std::vector<Action>& actions) const {
    return simulate(graph, cost, actions);
  }
  PhysicalGraph graph;
  CostModel cost;
};

Action run(std::uint32_t operation) { return {ActionKind::run, operation, {}}; }
Action replay(std::uint32_t operation) { return {ActionKind::replay, operation, {}}; }
Action offload(std::uint32_t value) { return {ActionKind::offload, 0, ValueId{value}}; }
Action wait_offload(std::uint32_t value) { return {ActionKind::wait_offload, 0, ValueId{value}}; }
Action prefetch(std::uint32_t value) { return {ActionKind::prefetch, 0, ValueId{value}}; }
Action wait_prefetch(std::uint32_t value) { return {ActionKind::wait_prefetch, 0, ValueId{value}}; }

void check_interval(const Timeline& timeline, std::size_t action, double start_ms, double end_ms) {
  CAPTURE(action);
  CHECK(timeline.intervals[action].start_ms == doctest::Approx(start_ms));
  CHECK(timeline.intervals[action].end_ms == doctest::Approx(end_ms));
}

TEST_CASE("timeline: one stream adds up") {
  const Timeline timeline = Case().simulated({run(0), run(2), replay(1), run(1)});
  CHECK(timeline.step_ms == doctest::Approx(1 + 4 + 20 + 2));
  CHECK(timeline.recompute_ms == doctest::Approx(20));
  CHECK(timeline.transfer_ms == 0);
  CHECK(timeline.stall_ms == 0);
  check_interval(timeline, 1, 1, 5);
  check_interval(timeline, 2, 5, 25);
}

TEST_CASE("timeline: a copy that is hidden costs nothing") {
  // Value 1 goes out in [1, 3] and comes back in [9, 13], beside operations 2 and 3.
  const Timeline timeline = Case().simulated(
      {run(0), offload(1), run(3), wait_offload(1), prefetch(1), run(2), wait_prefetch(1), run(1)});
  check_interval(timeline, 1, 1, 3);
  check_interval(timeline, 2, 1, 9);
  check_interval(timeline, 4, 9, 13);
  check_interval(timeline, 5, 9, 13);
  check_interval(timeline, 7, 13, 15);
  CHECK(timeline.step_ms == doctest::Approx(15));
  CHECK(timeline.transfer_ms == doctest::Approx(2 + 4));
  CHECK(timeline.stall_ms == 0);
}

TEST_CASE("timeline: compute stalls for what is not there yet") {
  // Out in [1, 5] beside 2 ms of compute: 2 ms of stall. Back in [5, 13] beside 1 ms: 7 ms more.
  const Timeline timeline = Case().simulated(
      {run(0), offload(3), run(1), wait_offload(3), prefetch(3), run(0), wait_prefetch(3), run(0)});
  check_interval(timeline, 1, 1, 5);
  check_interval(timeline, 3, 3, 5);
  check_interval(timeline, 4, 5, 13);
  check_interval(timeline, 6, 6, 13);
  check_interval(timeline, 7, 13, 14);
  CHECK(timeline.stall_ms == doctest::Approx(2 + 7));
  CHECK(timeline.step_ms == doctest::Approx(14));
}

TEST_CASE("timeline: copies of one direction queue, those of two do not") {
  // Out: value 0 in [1, 2] and value 3 behind it in [2, 6]; back: value 0 in [2, 4] beside it.
  const Timeline timeline = Case().simulated({run(0), offload(0), offload(3), prefetch(0), run(1),
                                              wait_offload(3), wait_prefetch(0), run(0)});
  check_interval(timeline, 1, 1, 2);
  check_interval(timeline, 2, 2, 6);
  check_interval(timeline, 3, 2, 4);  // not before it is out
  check_interval(timeline, 5, 3, 6);
  check_interval(timeline, 6, 6, 6);  // there long since
  CHECK(timeline.stall_ms == doctest::Approx(3));
  CHECK(timeline.step_ms == doctest::Approx(7));
  CHECK(timeline.transfer_ms == doctest::Approx(1 + 4 + 2));
}

TEST_CASE("timeline: prefetches queue behind each other") {
  const Timeline timeline = Case().simulated(
      {offload(0), offload(1), run(3), prefetch(1), prefetch(0), wait_prefetch(0), run(0)});
  check_interval(timeline, 3, 8, 12);
  check_interval(timeline, 4, 12, 14);
  check_interval(timeline, 6, 14, 15);
  CHECK(timeline.stall_ms == doctest::Approx(6));
}

TEST_CASE("timeline: latency is paid per copy, and the step lasts until the last one") {
  Case c;
  c.cost.latency_ms = 0.5;
  const Timeline timeline = c.simulated({run(0), offload(3), run(0)});
  check_interval(timeline, 1, 1, 5.5);
  CHECK(timeline.step_ms == doctest::Approx(5.5));
  CHECK(timeline.stall_ms == 0);
  CHECK(timeline.transfer_ms == doctest::Approx(4.5));
}

}  // namespace
}  // namespace layup
