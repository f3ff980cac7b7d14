// SPDX-License-Identifier: Apache-2.0
// Machine profiles: the formula by hand, what is refused, and the files that are shipped.
#include "memory/machine_profile.h"

#include <doctest/doctest.h>

#include <fstream>

#include "engine/error.h"
#include "memory/cost_model.h"
#include "tests/support/networks.h"
#include "tests/support/temp_folder.h"

namespace layup {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMachine = R"({
  "name": "by hand", "device_memory_bytes": 1000000, "reserved_bytes": 1000,
  "peak_flops_per_s": 1e9, "efficiency": {"conv": 0.5, "linear": 0.25},
  "memory_bandwidth_bytes_per_s": 1e6, "bandwidth_efficiency": 0.8,
  "link": {"offload_bytes_per_s": 1e5, "prefetch_bytes_per_s": 2e5, "latency_us": 250.0},
  "launch_us": 500.0, "source": "made up"})";

MachineProfile read_text(const std::string& text) {
  const test::TempFolder folder;
  std::ofstream(folder / "machine.json") << text;
  return read_machine_profile(folder / "machine.json");
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

PhysicalOperation operation(CostKind kind, double flops, double bytes) {
  PhysicalOperation op;
  op.cost_kind = kind;
  op.flops = flops;
  op.bytes_moved = bytes;
  return op;
}

TEST_CASE("machine profile: rates of a file tier may be given") {
  CHECK(read_text(kMachine).file == FileRates{});
  const std::string with_file = replaced(
      kMachine, "\"launch_us\"",
      R"("file": {"write_bytes_per_s": 5e8, "read_bytes_per_s": 6e8, "latency_us": 70}, "launch_us")");
  CHECK(read_text(with_file).file == FileRates{5e8, 6e8, 70});
  CHECK_THROWS_WITH_AS(read_text(replaced(with_file, "6e8", "0")),
                       doctest::Contains("/file/read_bytes_per_s"), ConfigError);
  CHECK_THROWS_WITH_AS(read_text(replaced(with_file, "read_bytes", "red_bytes")),
                       doctest::Contains("red_bytes_per_s"), ConfigError);
}

TEST_CASE("machine profile: the formula by hand") {
  const MachineProfile machine = read_text(kMachine);
  CHECK(machine.name == "by hand");
  CHECK(machine.device_memory_bytes == 1'000'000);
  CHECK(machine.reserved_bytes == 1000);
  // 1e6 FLOP at 5e8 per second: 2 ms, plus 0.5 ms of launch.
  CHECK(machine.operation_ms(operation(CostKind::conv, 1e6, 1)) == doctest::Approx(2.5));
  // At 2.5e8 per second: 4 ms.
  CHECK(machine.operation_ms(operation(CostKind::linear, 1e6, 1)) == doctest::Approx(4.5));
  // Bound by bandwidth: 8000 bytes at 8e5 per second are 10 ms, whatever there is to compute.
  CHECK(machine.operation_ms(operation(CostKind::conv, 1e6, 8000)) == doctest::Approx(10.5));
  CHECK(machine.operation_ms(operation(CostKind::bandwidth, 1e9, 8000)) == doctest::Approx(10.5));
  // Each direction has a rate of its own.
  CHECK(machine.offload_ms(1000) == doctest::Approx(10.25));
  CHECK(machine.prefetch_ms(1000) == doctest::Approx(5.25));
}

TEST_CASE("machine profile: without an efficiency a kind is bound by bandwidth") {
  const MachineProfile machine =
      read_text(replaced(kMachine, R"({"conv": 0.5, "linear": 0.25})", R"({"conv": 0.5})"));
  CHECK(machine.operation_ms(operation(CostKind::linear, 1e9, 800)) == doctest::Approx(1.5));
}

TEST_CASE("machine profile: costs of a graph, operation by operation") {
  PhysicalGraph graph = test::physical_training(test::parse_network(test::kSmallResidual), 2);
  const MachineProfile machine = read_text(kMachine);
  const CostModel cost = cost_of_profile(graph, machine);
  REQUIRE(cost.run_ms.size() == graph.operations.size());
  REQUIRE(cost.replay_ms.size() == graph.replays.size());
  double total = 0;
  for (std::size_t i = 0; i < cost.run_ms.size(); ++i) {
    CHECK(cost.run_ms[i] == machine.operation_ms(graph.operations[i]));
    total += cost.run_ms[i];
  }
  CHECK(cost.compute_ms() == doctest::Approx(total));
  CHECK(cost.source == "profile by hand");
  CHECK(cost.offload_ms(1000) == doctest::Approx(machine.offload_ms(1000)));
  CHECK(cost.prefetch_ms(1000) == doctest::Approx(machine.prefetch_ms(1000)));

  use_profile_workspaces(graph);
  for (const PhysicalOperation& op : graph.operations) {
    CAPTURE(op.name);
    const bool is_conv = op.name.starts_with("conv") && op.kind == OpKind::layer;
    CHECK(op.workspace_bytes == (is_conv ? 8 << 20 : 0));
  }
}

TEST_CASE("machine profile: what is refused, and where") {
  struct Wrong {
    const char* from;
    const char* to;
    std::vector<const char*> words;
  };
  const std::vector<Wrong> cases = {
      {"launch_us", "launch_ms", {"launch_ms", "launch_us", "machine.json"}},
      {"latency_us", "latency", {"/link", "latency"}},
      {R"("conv": 0.5)", R"("conf": 0.5)", {"/efficiency", "conf", "did you mean"}},
      {"0.5", "1.5", {"conv"}},
      {"1e9", "0", {"peak_flops_per_s"}},
      {"1e9", "\"fast\"", {"peak_flops_per_s"}},
      {R"("device_memory_bytes": 1000000,)", "", {"device_memory_bytes"}},
      {R"("name": "by hand",)", "", {"name"}},
      {R"("offload_bytes_per_s": 1e5,)", "", {"/link", "offload_bytes_per_s"}},
  };
  for (const Wrong& wrong : cases) {
    CAPTURE(wrong.to);
    std::string error;
    try {
      read_text(replaced(kMachine, wrong.from, wrong.to));
    } catch (const ConfigError& caught) {
      error = caught.what();
    }
    for (const char* word : wrong.words) {
      INFO("looking for \"" << word << "\" in: " << error);
      CHECK(error.find(word) != std::string::npos);
    }
  }
  CHECK_THROWS_WITH_AS(
      read_text(replaced(
          kMachine,
          R"("link": {"offload_bytes_per_s": 1e5, "prefetch_bytes_per_s": 2e5, "latency_us": 250.0},)",
          "")),
      doctest::Contains("link"), ConfigError);
  // Measured profiles carry more, in a place of its own.
  CHECK_NOTHROW(
      read_text(replaced(kMachine, R"("source")", R"("calibration": {"a": 1}, "source")")));
}

TEST_CASE("machine profile: the shipped ones, all six") {
  std::size_t num_files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator("profiles")) {
    if (entry.path().extension() != ".json") continue;
    CAPTURE(entry.path().string());
    ++num_files;
    const MachineProfile machine = read_machine_profile(entry.path());
    CHECK_FALSE(machine.name.empty());
    CHECK(machine.device_memory_bytes - machine.reserved_bytes > std::int64_t{1} << 30);
    CHECK(machine.peak_flops_per_s > 1e12);
    CHECK(machine.conv_efficiency > 0);
    CHECK(machine.linear_efficiency > 0);
    CHECK(machine.memory_bandwidth_bytes_per_s > machine.offload_bytes_per_s);
    CHECK(machine.prefetch_bytes_per_s > 1e9);
  }
  CHECK(num_files == 6);
}

}  // namespace
}  // namespace layup
