// SPDX-License-Identifier: Apache-2.0
// One step of a session as a timeline, measured and predicted, and which step of a run it is.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "apps/step_tracer.h"
#include "engine/device/recording_device.h"
#include "engine/error.h"
#include "scheduler/session.h"
#include "tests/support/networks.h"
#include "tests/support/temp_folder.h"

namespace layup {
namespace {

// Enough work that copies of a few milliseconds have something to run beside.
constexpr const char* kNetwork = R"({"name": "net", "input": {"shape": [2, 16, 16]}, "layers": [
  {"name": "conv1", "type": "conv2d", "out_channels": 16, "kernel": 3, "padding": 1},
  {"name": "bn1", "type": "batch_norm"},
  {"name": "relu1", "type": "relu"},
  {"name": "conv2", "type": "conv2d", "out_channels": 16, "kernel": 3, "padding": 1},
  {"name": "relu2", "type": "relu"},
  {"name": "conv3", "type": "conv2d", "out_channels": 16, "kernel": 3, "padding": 1},
  {"name": "sum", "type": "add", "inputs": ["conv3", "relu1"]},
  {"name": "pool", "type": "max_pool2d", "kernel": 2, "stride": 2},
  {"name": "fc", "type": "linear", "out_features": 3},
  {"name": "loss", "type": "softmax_cross_entropy"}]})";

struct Slice {
  int process = 0;
  int thread = 0;
  std::string name;
  std::string kind;
  std::int64_t bytes = 0;
  double start = 0;
  double end = 0;
};

// A trace as a reader sees it.
class Reader {
 public:
  explicit Reader(const std::string& text) : root_(Json::parse(text)) {}

  std::vector<Json> events(const std::string& phase) const {
    std::vector<Json> found;
    for (const Json& event : root_.at("traceEvents"))
      if (event.at("ph") == phase) found.push_back(event);
    return found;
  }
  std::vector<Slice> slices() const {
    std::vector<Slice> found;
    for (const Json& event : events("X")) {
      const double start = event.at("ts");
      found.push_back({event.at("pid"), event.at("tid"), event.at("name"),
                       event.at("args").at("kind"), event.at("args").at("bytes"), start,
                       start + event.at("dur").get<double>()});
    }
    return found;
  }
  // By name of process and thread.
  std::vector<Slice> slices(const std::string& process, const std::string& thread) const {
    std::vector<Slice> found;
    for (const Slice& slice : slices())
      if (name_of("process_name", slice.process, 0) == process &&
          name_of("thread_name", slice.process, slice.thread) == thread)
        found.push_back(slice);
    return found;
  }
  std::string name_of(const std::string& what, int process, int thread) const {
    for (const Json& event : events("M"))
      if (event.at("name") == what && event.at("pid") == process && event.at("tid") == thread)
        return event.at("args").at("name");
    return "";
  }
  const Json& root() const { return root_; }

 private:
  Json root_;
};

// Two steps of training under a policy; the second one is timed.
class TracedStep {
 public:
  TracedStep(Device& device, const std::string& policy)
      : solver_(test::momentum_solver()),
        plan_(plan_session(test::parse_network(kNetwork), solver_.get(), request(policy))),
        session_(device, plan_, solver_.get()),
        times(plan_.main().program.instructions.size()) {
    session_.initialize(3);
    StepState state;
    state.learning_rate = 0.01F;
    session_.run(ProgramId::train, state);
    session_.run(ProgramId::train, state, times);
    const ProgramPlan* program = &plan_.main();
    trace = trace_step({&program, 1}, times);
  }
  static SessionRequest request(const std::string& policy) {
    SessionRequest request;
    request.batch = 8;
    request.policy = policy;
    return request;
  }
  Session& session() { return session_; }
  const ProgramPlan& program() const { return plan_.main(); }

 private:
  std::unique_ptr<Solver> solver_;
  SessionPlan plan_;
  Session session_;

 public:
  std::vector<TimeSpan> times;
  Trace trace;
};

void check_no_overlap(const Reader& reader) {
  std::map<int, double> end;
  for (const Slice& slice : reader.slices()) {
    INFO(slice.name << " on " << slice.thread);
    CHECK(slice.start >= end[slice.thread]);
    CHECK(slice.end >= slice.start);
    end[slice.thread] = slice.end;
  }
}

TEST_CASE("step trace: both timelines have every kernel and copy, on the track of its stream") {
  for (const char* policy : {"none", "sublinear", "vdnn_all", "layup"}) {
    RecordingDevice device(true);
    TracedStep step(device, policy);
    const Reader reader(step.trace.to_json());
    INFO(policy);
    check_no_overlap(reader);
    CHECK(reader.root().at("displayTimeUnit") == "ms");
    CHECK(reader.events("M").size() == 8);
    std::size_t num_slices = 0;
    for (const char* thread : {"compute", "copy out", "copy in"}) {
      std::vector<Slice> sides[2];
      for (const int side : {0, 1}) {
        sides[side] = reader.slices(side == 0 ? "measured" : "predicted", thread);
        std::erase_if(sides[side], [](const Slice& slice) { return slice.kind == "wait"; });
      }
      REQUIRE(sides[0].size() == sides[1].size());
      num_slices += sides[0].size();
      for (std::size_t i = 0; i < sides[0].size(); ++i) {
        CHECK(sides[0][i].name == sides[1][i].name);
        CHECK(sides[0][i].kind == sides[1][i].kind);
        CHECK(sides[0][i].bytes == sides[1][i].bytes);
        CHECK(sides[0][i].bytes > 0);
      }
    }
    CHECK(num_slices == step.program().program.instructions.size());
    // The last thing on the predicted side ends with the predicted step.
    double end = 0;
    for (const Slice& slice : reader.slices())
      if (slice.process == 2) end = std::max(end, slice.end);
    CHECK(end == doctest::Approx(1e3 * step.program().timeline.step_ms).epsilon(1e-3));
  }
}

TEST_CASE("step trace: what a slice says") {
  RecordingDevice device(true);
  TracedStep step(device, "layup");
  std::set<std::string> kinds;
  for (const Slice& slice : Reader(step.trace.to_json()).slices()) {
    kinds.insert(slice.kind);
    if (slice.name == "conv2 forward") {
      CHECK(slice.kind == "forward");
      // x, w, b, y
      CHECK(slice.bytes == 4 * (8 * 16 * 16 * 16 + 16 * 16 * 9 + 16 + 8 * 16 * 16 * 16));
    }
  }
  for (const char* kind : {"load", "forward", "backward_params", "backward_data", "update"})
    CHECK(kinds.count(kind) == 1);
}

TEST_CASE("step trace: counters follow the plan") {
  for (const char* policy : {"none", "sublinear", "vdnn_all", "vdnn_conv", "layup"}) {
    RecordingDevice device(true);
    TracedStep step(device, policy);
    INFO(policy);
    for (const int process : {1, 2}) {
      std::map<std::string, std::int64_t> most, last;
      std::map<std::string, double> at;
      for (const Json& event : Reader(step.trace.to_json()).events("C")) {
        if (event.at("pid") != process) continue;
        const std::string name = event.at("name");
        const std::int64_t live = event.at("args").at("live");
        CHECK(live >= 0);
        CHECK(event.at("ts").get<double>() >= at[name]);
        at[name] = event.at("ts");
        most[name] = std::max(most[name], live);
        last[name] = live;
        CHECK(event.at("args").at("planned") == (name == "device bytes"
                                                     ? step.program().plan.arena_bytes
                                                     : step.program().plan.host_bytes));
      }
      CHECK(most.size() == 2);
      CHECK(most["device bytes"] == step.program().plan.max_live_bytes);
      CHECK(last["device bytes"] == step.program().plan.persistent.bytes);
      CHECK(most["host bytes"] == step.program().plan.host_bytes);
      CHECK(last["host bytes"] == 0);
    }
  }
}

TEST_CASE("step trace: counters change when copies begin and end") {
  const auto device = make_cpu_device(DeviceKind::reference, LinkPace{1e8, 3000});
  TracedStep step(*device, "vdnn_all");
  const Reader reader(step.trace.to_json());
  std::multiset<double> offload_starts, prefetch_ends, copy_ends, rises, falls;
  std::vector<Slice> waits;
  for (const Slice& slice : reader.slices()) {
    if (slice.process != 1) continue;
    if (slice.kind == "offload") offload_starts.insert(slice.start);
    if (slice.kind == "prefetch") prefetch_ends.insert(slice.end);
    if (slice.kind == "offload" || slice.kind == "prefetch") copy_ends.insert(slice.end);
    if (slice.kind == "wait") waits.push_back(slice);
  }
  REQUIRE(!waits.empty());
  std::int64_t host = 0;
  std::int64_t on_device = 0;
  for (const Json& event : reader.events("C")) {
    if (event.at("pid") != 1) continue;
    const std::int64_t live = event.at("args").at("live");
    const double at = event.at("ts");
    if (event.at("name") == "host bytes") {
      if (live != host) (live > host ? rises : falls).insert(at);
      host = live;
      continue;
    }
    // While compute waits, bytes come free when a copy ends.
    if (live < on_device && std::ranges::any_of(waits, [&](const Slice& wait) {
          return wait.start < at && at < wait.end;
        }))
      CHECK(copy_ends.count(at) > 0);
    on_device = live;
  }
  CHECK(rises == offload_starts);
  CHECK(falls == prefetch_ends);
}

TEST_CASE("step trace: predicted waits are the stalls of the plan") {
  RecordingDevice device(true);
  TracedStep step(device, "vdnn_all");
  double wait_us = 0;
  for (const Slice& slice : Reader(step.trace.to_json()).slices("predicted", "compute"))
    if (slice.kind == "wait") {
      CHECK(slice.end - slice.start >= 0.875);  // 1, rounded
      wait_us += slice.end - slice.start;
    }
  CHECK(wait_us > 0);
  // Those of less than 1 are left out.
  const auto num_copies =
      static_cast<double>(Reader(step.trace.to_json()).slices("predicted", "copy in").size());
  CHECK(std::abs(wait_us - 1e3 * step.program().timeline.stall_ms) <= 2 * num_copies);
}

TEST_CASE("step trace: the programs of a step come one after the other") {
  RecordingDevice device(true);
  TracedStep step(device, "vdnn_all");
  const std::size_t num_slices = step.times.size();
  std::vector<TimeSpan> times = step.times;
  for (TimeSpan time : step.times)
    times.push_back({time.start_ns + 10'000'000, time.end_ns + 10'000'000});
  const std::vector<const ProgramPlan*> programs(2, &step.program());
  const Reader reader(trace_step(programs, times).to_json());
  check_no_overlap(reader);
  const double step_us = 1e3 * step.program().timeline.step_ms;
  for (const int process : {1, 2}) {
    std::vector<Slice> slices = reader.slices();
    std::erase_if(slices, [&](const Slice& slice) {
      return slice.process != process || slice.kind == "wait";
    });
    REQUIRE(slices.size() == 2 * num_slices);
    for (std::size_t i = 0; i < num_slices; ++i) {
      CHECK(slices[i].name == slices[i + num_slices].name);
      CHECK(slices[i + num_slices].start ==
            doctest::Approx(slices[i].start + (process == 1 ? 10'000 : step_us)).epsilon(1e-3));
    }
  }
}

TEST_CASE("step trace: an arrow from each offload to its prefetch") {
  RecordingDevice device(true);
  TracedStep step(device, "vdnn_all");
  const Reader reader(step.trace.to_json());
  const std::vector<Json> starts = reader.events("s");
  const std::vector<Json> ends = reader.events("f");
  const std::size_t num_prefetches = reader.slices("measured", "copy in").size();
  REQUIRE(num_prefetches > 0);
  REQUIRE(starts.size() == 2 * num_prefetches);
  REQUIRE(ends.size() == starts.size());
  const auto is_within = [&](const Json& point, const std::string& kind) {
    return std::ranges::any_of(reader.slices(), [&](const Slice& slice) {
      return slice.process == point.at("pid") && slice.thread == point.at("tid") &&
             slice.name == point.at("name") && slice.kind == kind &&
             slice.start <= point.at("ts").get<double>() &&
             point.at("ts").get<double>() <= slice.end;
    });
  };
  std::set<std::int64_t> ids;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    CHECK(ids.insert(starts[i].at("id").get<std::int64_t>()).second);
    CHECK(ends[i].at("id") == starts[i].at("id"));
    CHECK(ends[i].at("pid") == starts[i].at("pid"));
    CHECK(ends[i].at("ts").get<double>() > starts[i].at("ts").get<double>());
    CHECK(is_within(starts[i], "offload"));
    CHECK(is_within(ends[i], "prefetch"));
  }
}

TEST_CASE("step trace: paced copies take their time, beside compute, and compute waits for them") {
  const auto device = make_cpu_device(DeviceKind::reference, LinkPace{1e8, 3000});
  TracedStep step(*device, "vdnn_all");
  CHECK(step.session().allocations_after_start() == 0);
  const Reader reader(step.trace.to_json());
  check_no_overlap(reader);
  const std::vector<Slice> compute = reader.slices("measured", "compute");
  double earliest = 1e9;
  int num_beside = 0;
  for (const char* thread : {"copy out", "copy in"}) {
    REQUIRE(!reader.slices("measured", thread).empty());
    for (const Slice& copy : reader.slices("measured", thread)) {
      INFO(copy.name);
      // Ends of slices are rounded to 1/8.
      CHECK(copy.end - copy.start >= 3000 + static_cast<double>(copy.bytes) / 1e8 * 1e6 - 0.125);
      num_beside += std::ranges::any_of(compute, [&](const Slice& kernel) {
        return kernel.kind != "wait" && kernel.start < copy.end && copy.start < kernel.end;
      });
    }
  }
  CHECK(num_beside > 0);
  for (const Slice& slice : compute) {
    earliest = std::min(earliest, slice.start);
    if (slice.kind != "wait") continue;
    // It ends with the copy that it waits for.
    CHECK(std::ranges::any_of(reader.slices(), [&](const Slice& copy) {
      return copy.process == 1 && "wait for " + copy.name == slice.name &&
             copy.bytes == slice.bytes && (copy.kind == "offload" || copy.kind == "prefetch") &&
             copy.end == slice.end;
    }));
  }
  CHECK(std::ranges::any_of(compute, [](const Slice& slice) { return slice.kind == "wait"; }));
  CHECK(earliest == 0);
}

TEST_CASE("step tracer: the third step, or the last") {
  const auto solver = test::momentum_solver();
  const SessionPlan plan =
      plan_session(test::parse_network(kNetwork), solver.get(), TracedStep::request("none"));
  const test::TempFolder folder;
  for (const std::int64_t num_steps : {0, 2, 5}) {
    StepTracer tracer(folder / "trace.json");
    CHECK(std::filesystem::is_empty(folder.path()));
    for (std::int64_t step = 1; step <= num_steps; ++step) {
      const std::span<TimeSpan> times = tracer.begin_step(plan, 8);
      CHECK(times.empty() == (step > 3));
      // The step's number is the length of its first kernel in milliseconds.
      if (!times.empty()) times[0].end_ns = 1000 * 1000 * step;
    }
    REQUIRE(tracer.write() == (num_steps > 0));
    if (num_steps == 0) continue;
    std::stringstream text;
    text << std::ifstream(folder / "trace.json").rdbuf();
    CHECK(Reader(text.str()).slices().front().end == (num_steps == 2 ? 2000 : 3000));
    std::filesystem::remove(folder / "trace.json");
  }
  StepTracer idle("");
  CHECK(idle.begin_step(plan, 8).empty());
  CHECK(!idle.write());
}

TEST_CASE("step tracer: a file that cannot be written is refused at once") {
  const test::TempFolder folder;
  CHECK_THROWS_WITH_AS(StepTracer(folder / "nowhere" / "trace.json"), doctest::Contains("nowhere"),
                       ConfigError);
  CHECK_THROWS_WITH_AS(StepTracer(folder.path()), doctest::Contains("it is a folder"), ConfigError);
}

}  // namespace
}  // namespace layup
