// SPDX-License-Identifier: Apache-2.0
// Measured costs: the file that keeps them, what is measured, and that planning never does.
#include "memory/calibration.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>

#include "apps/run_plan.h"
#include "apps/trainer.h"
#include "engine/error.h"
#include "scheduler/calibrate.h"
#include "tests/support/networks.h"
#include "tests/support/temp_folder.h"

namespace layup {
namespace {

namespace fs = std::filesystem;

// The cache in a folder of its own.
class Cache {
 public:
  Cache() { setenv("LAYUP_CACHE_DIR", (folder / "cache").c_str(), 1); }
  ~Cache() { unsetenv("LAYUP_CACHE_DIR"); }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  test::TempFolder folder;
};

Calibration some_calibration() {
  Calibration calibration;
  calibration.machine = machine_name();
  calibration.threads = 3;
  calibration.operation_ms = {{"conv2d forward {\"k\":3} \"x\"", 0.1}, {"relu", 1e-7}, {"c", 250}};
  calibration.copy_bytes_per_s = 7.3e9;
  calibration.latency_us = 1.0 / 3;
  calibration.interference = 0.7;
  return calibration;
}

void replace_in_file(const fs::path& path, const std::string& from, const std::string& to) {
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  std::ofstream(path) << text.replace(at, from.size(), to);
}

TEST_CASE("calibration: the file gives back every bit") {
  const Cache cache;
  CHECK_FALSE(read_calibration(DeviceKind::reference, 3).has_value());
  const Calibration written = some_calibration();
  REQUIRE(write_calibration(written));
  const auto read = read_calibration(DeviceKind::reference, 3);
  REQUIRE(read.has_value());
  CHECK(*read == written);
  // Of other threads it says nothing.
  CHECK_FALSE(read_calibration(DeviceKind::reference, 2).has_value());
  CHECK(calibration_path(DeviceKind::reference, 3).parent_path() == cache.folder / "cache");
  CHECK(calibration_path(DeviceKind::reference, 3) != calibration_path(DeviceKind::reference, 2));
  CHECK_FALSE(machine_name().empty());
}

TEST_CASE("calibration: another machine's, another format's and damaged files do not count") {
  const Cache cache;
  const fs::path path = calibration_path(DeviceKind::reference, 3);
  const auto is_read = [] { return read_calibration(DeviceKind::reference, 3).has_value(); };
  const auto write_anew = [&] { REQUIRE(write_calibration(some_calibration())); };
  write_anew();
  Calibration other = some_calibration();
  other.machine = "another processor";
  REQUIRE(write_calibration(other));
  CHECK_FALSE(is_read());
  write_anew();
  CHECK(is_read());
  replace_in_file(path, "\"format\": 2", "\"format\": 1");
  CHECK_FALSE(is_read());
  write_anew();
  replace_in_file(path, "\"latency_us\"", "\"latency\"");
  CHECK_FALSE(is_read());
  write_anew();
  replace_in_file(path, "\"interference\": 0.7", "\"interference\": 1.7");
  CHECK_FALSE(is_read());
  write_anew();
  fs::resize_file(path, fs::file_size(path) / 2);
  CHECK_FALSE(is_read());
  std::ofstream(path) << "";
  CHECK_FALSE(is_read());
  // Where nothing can be written, training goes on without.
  fs::remove_all(cache.folder / "cache");
  std::ofstream(cache.folder / "cache") << "a file";
  CHECK_FALSE(write_calibration(some_calibration()));
}

struct Graphs {
  explicit Graphs(std::int64_t batch)
      : graph(build_graph(test::parse_network(test::kSmallResidual), batch)),
        solver(test::momentum_solver()) {
    DifferentiateOptions options;
    options.solver_states = solver->state_names();
    physical = select_kernels(graph, differentiate(graph, options), DeviceKind::reference, 1);
  }
  Graph graph;
  std::unique_ptr<Solver> solver;
  PhysicalGraph physical;
};

TEST_CASE("calibration: one operation of each key is missing, until it is measured") {
  const Graphs net(2);
  Calibration calibration;
  const auto all = find_unmeasured(net.physical, calibration);
  std::set<std::string> keys;
  for (const auto* operations : {&net.physical.operations, &net.physical.replays})
    for (const PhysicalOperation& op : *operations)
      if (!op.writes.empty()) keys.insert(op.cost_key);
  CHECK(all.size() == keys.size());
  CHECK(all.size() < net.physical.operations.size() + net.physical.replays.size());
  for (const PhysicalOperation* op : all) CHECK(keys.erase(op->cost_key) == 1);

  calibration.operation_ms[all[3]->cost_key] = 1;
  CHECK(find_unmeasured(net.physical, calibration).size() == all.size() - 1);

  const auto device = make_cpu_device(DeviceKind::reference);
  const int measured = calibrate(net.graph, net.physical, net.solver.get(), *device, calibration);
  CHECK(measured == static_cast<int>(all.size()) - 1);
  CHECK(find_unmeasured(net.physical, calibration).empty());
  CHECK(calibration.operation_ms.at(all[3]->cost_key) == 1);
  for (const auto& [key, ms] : calibration.operation_ms) {
    CAPTURE(key);
    CHECK(ms > 0);
    CHECK(std::isfinite(ms));
  }
  CHECK(calibration.copy_bytes_per_s > 1e8);
  CHECK(calibration.latency_us > 0);
  CHECK(calibration.interference >= 0);
  CHECK(calibration.interference <= kMostInterference);
  CHECK(device->counters().live_bytes == 0);
  // What is known is not measured again.
  CHECK(calibrate(net.graph, net.physical, net.solver.get(), *device, calibration) == 0);
  // Other shapes are other operations.
  CHECK_FALSE(find_unmeasured(Graphs(3).physical, calibration).empty());
}

TEST_CASE("calibration: costs are measured ones, and estimates where there are none") {
  const Graphs net(2);
  const CostModel estimate = estimate_cost(net.physical);
  Calibration calibration;
  calibration.operation_ms[net.physical.operations[4].cost_key] = 77;
  calibration.operation_ms[net.physical.replays[2].cost_key] = 88;
  calibration.copy_bytes_per_s = 5e9;
  calibration.latency_us = 40;
  calibration.interference = 0.25;
  const CostModel cost = cost_of_calibration(net.physical, calibration);
  CHECK(cost.source.starts_with("calibration, "));
  CHECK(cost.source.ends_with(" operations estimated"));
  for (std::size_t i = 0; i < cost.run_ms.size(); ++i) {
    const bool is_known =
        net.physical.operations[i].cost_key == net.physical.operations[4].cost_key;
    CHECK(cost.run_ms[i] == (is_known ? 77 : estimate.run_ms[i]));
  }
  CHECK(cost.replay_ms[2] == 88);
  CHECK(cost.replay_ms[0] == estimate.replay_ms[0]);
  CHECK(cost.offload_bytes_per_s == 5e9);
  CHECK(cost.prefetch_bytes_per_s == 5e9);
  CHECK(cost.latency_ms == doctest::Approx(0.04));
  CHECK(cost.interference == 0.25);
  CHECK(cost_of_calibration(net.physical, {}).offload_bytes_per_s == estimate.offload_bytes_per_s);
}

TEST_CASE("calibration: a paced link is slower, and takes less from what runs beside it") {
  Calibration calibration = some_calibration();
  calibration.copy_bytes_per_s = 20e9;
  calibration.interference = 0.8;
  limit_copies(calibration, {.bytes_per_s = 5e9, .latency_us = 7});
  CHECK(calibration.copy_bytes_per_s == 5e9);
  CHECK(calibration.interference == doctest::Approx(0.2));
  CHECK(calibration.latency_us == 7);
  limit_copies(calibration, {.bytes_per_s = 50e9, .latency_us = 0});  // no faster than it is
  CHECK(calibration.copy_bytes_per_s == 5e9);
  CHECK(calibration.interference == doctest::Approx(0.2));
  CHECK(calibration.latency_us == 7);
}

constexpr const char* kConfig = R"({
  "model": {"builder": "lenet"},
  "data": {"format": "synthetic", "shape": [1, 28, 28], "classes": 10, "samples": 40},
  "solver": {"type": "sgd", "lr": 0.05, "momentum": 0.9},
  "train": {"batch": 16, "epochs": 1, "seed": 1},
  "memory": {"policy": "layup"}
})";

struct PlanKeeper : TrainObserver {
  void on_plan(const SessionPlan& plan) override {
    memory = plan.main().plan;
    source = plan.main().cost.source;
    step_ms = plan.main().timeline.step_ms;
  }
  void on_message(const std::string& message) override { messages += message + "\n"; }
  MemoryPlan memory;
  std::string source;
  std::string messages;
  double step_ms = 0;
};

TEST_CASE("calibration: plan and train agree, and planning does not measure") {
  const Cache cache;
  std::ofstream(cache.folder / "config.json") << kConfig;
  const RunConfig config = read_config(cache.folder / "config.json", {});
  CHECK(plan_run(config, {}, "layup").main().cost.source == "estimate");
  CHECK_FALSE(fs::exists(calibration_path(DeviceKind::reference, 1)));

  RunOptions options;
  options.steps = 1;
  PlanKeeper first;
  train(config, options, first);
  CHECK(first.source == "calibration");
  CHECK(first.messages.find("measured") != std::string::npos);
  REQUIRE(fs::exists(calibration_path(DeviceKind::reference, 1)));

  const auto written = fs::last_write_time(calibration_path(DeviceKind::reference, 1));
  const SessionPlan planned = plan_run(config, {}, "layup");
  CHECK(planned.main().plan == first.memory);
  CHECK(planned.main().timeline.step_ms == first.step_ms);

  PlanKeeper second;
  train(config, options, second);
  CHECK(second.memory == first.memory);
  CHECK(second.messages.find("measured") == std::string::npos);
  CHECK(fs::last_write_time(calibration_path(DeviceKind::reference, 1)) == written);
}

}  // namespace
}  // namespace layup
