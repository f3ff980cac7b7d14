// SPDX-License-Identifier: Apache-2.0
// The predicted timeline: cases of two streams with times worked out by hand.
#include "memory/simulate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

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

TEST_CASE("timeline: a copy takes its part from the computation beside it") {
  Case c;
  c.cost.interference = 0.5;
  // Out in [1, 5]: operation 3 does 2 of its 8 ms in them, the rest by 11.
  const Timeline out = c.simulated({run(0), offload(3), run(3), run(0)});
  check_interval(out, 1, 1, 5);
  check_interval(out, 2, 1, 11);
  check_interval(out, 3, 11, 12);
  CHECK(out.stall_ms == 0);
  // Both directions at once, out in [1.5, 5.5] and back in [1.5, 3.5]: at a quarter, then at a
  // half.
  const Timeline both = c.simulated({offload(0), run(0), offload(3), prefetch(0), run(3)});
  check_interval(both, 1, 0, 1.5);
  check_interval(both, 2, 1.5, 5.5);
  check_interval(both, 3, 1.5, 3.5);
  check_interval(both, 4, 1.5, 5.5 + (8 - 0.5 - 1));
}

TEST_CASE("timeline: each tier takes its own part") {
  Case c;
  c.cost.interference = 0.5;
  c.cost.file = {.write_bytes_per_s = 5e5, .read_bytes_per_s = 5e5, .latency_us = 0};
  c.cost.file.interference = 0.25;
  Action to_file = offload(0);
  to_file.tier = Tier::file;
  const Timeline timeline = c.simulated({to_file, run(2)});  // 2 ms, in which 1.5 are done
  check_interval(timeline, 1, 0, 2 + 2.5);
}

// The same in small steps of time, computation first: slow, and sure.
double step_ms_in_steps(const Case& c, const std::vector<Action>& actions, double dt) {
  struct Stream {
    double ends_ms = 0;
    double part = 0;
  };
  Stream out;
  Stream in;
  std::vector<double> copied(c.graph.values.size(), 0);
  double now = 0;
  const auto give = [&](Stream& stream, const Action& action, double ready, double ms) {
    const double own = c.cost.interference_of(action.tier);
    stream.part = stream.ends_ms > now ? std::max(stream.part, own) : own;
    stream.ends_ms = std::max(stream.ends_ms, ready) + ms;
    copied[index(action.value)] = stream.ends_ms;
  };
  for (const Action& action : actions) {
    const std::int64_t bytes = c.graph.values[index(action.value)].bytes;
    switch (action.kind) {
      case ActionKind::run:
      case ActionKind::replay: {
        double left = action.kind == ActionKind::run ? c.cost.run_ms[action.operation]
                                                     : c.cost.replay_ms[action.operation];
        for (; left > 0; now += dt) {
          double speed = 1;
          for (const Stream& stream : {out, in})
            if (now < stream.ends_ms) speed *= 1 - stream.part;
          left -= speed * dt;
        }
        break;
      }
      case ActionKind::offload:
        give(out, action, now, c.cost.offload_ms(bytes, action.tier));
        break;
      case ActionKind::prefetch:
        give(in, action, std::max(now, copied[index(action.value)]),
             c.cost.prefetch_ms(bytes, action.tier));
        break;
      default: now = std::max(now, copied[index(action.value)]);
    }
  }
  return std::max({now, out.ends_ms, in.ends_ms});
}

TEST_CASE("timeline: random steps as in small steps of time, and never below their work") {
  std::mt19937 random(7);
  const auto up_to = [&](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
  for (int round = 0; round < 200; ++round) {
    Case c;
    c.cost.interference = 0.95 * up_to(101) / 100;
    c.cost.file = {.write_bytes_per_s = 8e5, .read_bytes_per_s = 4e5, .latency_us = 100};
    c.cost.file.interference = 0.95 * up_to(101) / 100;
    std::vector<Action> actions;
    double least_ms = 0;
    for (std::uint32_t i = 0; i < 12; ++i) {
      const std::uint32_t value = up_to(4);
      switch (up_to(5)) {
        case 0: actions.push_back(offload(value)); break;
        case 1: actions.push_back(prefetch(value)); break;
        case 2: actions.push_back(wait_prefetch(value)); break;
        case 3: actions.push_back(replay(value)); break;
        default: actions.push_back(run(value));
      }
    }
    // What planning takes for a lower bound (plan_memory).
    const double at_once = 1 - std::max(c.cost.interference, c.cost.file.interference) / 2;
    for (Action& action : actions) {
      const bool is_copy =
          action.kind == ActionKind::offload || action.kind == ActionKind::prefetch;
      if (is_copy && up_to(2) == 0) action.tier = Tier::file;
      const std::int64_t bytes = c.graph.values[index(action.value)].bytes;
      const double part = at_once * c.cost.interference_of(action.tier);
      switch (action.kind) {
        case ActionKind::run: least_ms += c.cost.run_ms[action.operation]; break;
        case ActionKind::replay: least_ms += c.cost.replay_ms[action.operation]; break;
        case ActionKind::offload: least_ms += part * c.cost.offload_ms(bytes, action.tier); break;
        case ActionKind::prefetch: least_ms += part * c.cost.prefetch_ms(bytes, action.tier); break;
        default: break;
      }
    }
    const Timeline timeline = c.simulated(actions);
    CHECK(timeline.step_ms >= least_ms - 1e-9);
    CHECK(timeline.step_ms == doctest::Approx(step_ms_in_steps(c, actions, 1e-3)).epsilon(2e-3));
  }
}

}  // namespace
}  // namespace layup
