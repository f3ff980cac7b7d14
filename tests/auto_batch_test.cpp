// SPDX-License-Identifier: Apache-2.0
// --batch auto: the largest batch that fits, proven by plans on both sides of it.
#include "apps/auto_batch.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <utility>

#include "engine/error.h"
#include "tests/support/temp_folder.h"

namespace layup {
namespace {

constexpr const char* kConfig = R"({
  "model": {"name": "net", "input": {"shape": [1, 16, 16]}, "layers": [
    {"name": "conv1", "type": "conv2d", "out_channels": 16, "kernel": 3, "padding": 1},
    {"name": "relu1", "type": "relu"},
    {"name": "conv2", "type": "conv2d", "out_channels": 16, "kernel": 3, "padding": 1},
    {"name": "bn2", "type": "batch_norm"},
    {"name": "relu2", "type": "relu"},
    {"name": "conv3", "type": "conv2d", "out_channels": 16, "kernel": 3, "padding": 1},
    {"name": "pool", "type": "max_pool2d", "kernel": 2},
    {"name": "fc", "type": "linear", "out_features": 4},
    {"name": "loss", "type": "softmax_cross_entropy"}]},
  "data": {"format": "synthetic", "shape": [1, 16, 16], "classes": 4, "samples": 200},
  "solver": {"type": "sgd", "lr": 0.05, "momentum": 0.9},
  "train": {"batch": "auto", "epochs": 1, "seed": 1}
})";

class Workplace {
 public:
  Workplace() {
    // What other runs on this machine have measured must not matter here.
    setenv("LAYUP_CACHE_DIR", (folder_ / "cache").c_str(), 1);
    std::ofstream(folder_ / "config.json") << kConfig;
  }
  RunConfig config(const std::string& policy, std::optional<std::int64_t> budget_bytes,
                   const std::vector<Override>& changes = {}) const {
    RunConfig config = read_config(folder_ / "config.json", changes);
    config.memory.policy = policy;
    config.memory.budget_bytes = budget_bytes;
    return config;
  }

 private:
  test::TempFolder folder_;
};

// The smallest budget for a batch; leaves the configuration as it was.
std::int64_t needed(RunConfig& config, std::int64_t batch) {
  const std::int64_t before = std::exchange(config.train.batch, batch);
  const std::int64_t bytes =
      plan_run(config, {}, config.memory.policy).minimum_budget_bytes.value();
  config.train.batch = before;
  return bytes;
}

TEST_CASE("auto batch: it fits, and one more sample does not") {
  const Workplace place;
  CHECK(place.config("none", {}).train.batch == 0);
  std::int64_t of_none = 0;
  for (const std::string policy : {"none", "layup", "auto"})
    for (const std::int64_t budget : {600'000, 1'500'000, 4'000'000}) {
      INFO("policy " << policy << ", budget " << budget);
      RunConfig config = place.config(policy, budget);
      const AutoBatch found = choose_batch(config, {});
      CHECK(found.batch > 1);
      CHECK(found.batch < 200);
      CHECK(config.train.batch == found.batch);
      CHECK(found.bytes <= budget);
      CHECK(found.next_bytes > budget);
      CHECK(needed(config, found.batch) <= budget);
      CHECK(needed(config, found.batch + 1) > budget);
      if (policy == "none") of_none = found.batch;
      if (policy != "none" && budget == 4'000'000) CHECK(found.batch > of_none);
    }
}

TEST_CASE("auto batch: what was found trains within the budget") {
  const Workplace place;
  for (const std::string policy : {"none", "layup", "auto"}) {
    CAPTURE(policy);
    const std::int64_t budget = 2'500'000;
    RunConfig config = place.config(policy, budget);
    RunOptions options;
    const AutoBatch found = choose_batch(config, options);
    options.steps = 2;
    TrainObserver observer;
    const TrainResult result = train(config, options, observer);
    CHECK(result.summary["batch"] == found.batch);
    CHECK(result.summary["steps"] == 2);
    CHECK(result.summary["measured_peak_bytes"] == result.summary["planned_peak_bytes"]);
    CHECK(result.summary["measured_peak_bytes"].get<std::int64_t>() <= budget);
  }
}

TEST_CASE("auto batch: the data set is the limit") {
  const Workplace place;
  RunConfig config = place.config("none", std::int64_t{1} << 30);
  const AutoBatch found = choose_batch(config, {});
  CHECK(found.batch == config.data.train->size());
  CHECK(found.next_bytes == 0);
}

TEST_CASE("auto batch: a profile's memory stands in for a budget") {
  const Workplace place;
  MachineProfile machine = read_machine_profile("profiles/k40m.json");
  machine.device_memory_bytes = 13'000'000;  // 8 MiB of workspace on a profile
  machine.reserved_bytes = 1'000'000;
  RunConfig config = place.config("none", {});
  const AutoBatch found = choose_batch(config, {}, &machine);
  CHECK(config.memory.budget_bytes == 12'000'000);
  CHECK(found.bytes <= 12'000'000);
  CHECK(found.next_bytes > 12'000'000);
}

TEST_CASE("auto batch: not even one sample") {
  const Workplace place;
  RunConfig config = place.config("layup", 50'000);
  const std::int64_t least = needed(config, 1);
  REQUIRE(least > 50'000);
  const auto message = [&] {
    try {
      choose_batch(config, {});
    } catch (const PlanError& error) {
      return std::string(error.what());
    }
    return std::string();
  }();
  INFO(message);
  CHECK(message.find("50000 bytes") != std::string::npos);
  CHECK(message.find(std::to_string(least) + " bytes") != std::string::npos);
}

}  // namespace
}  // namespace layup
