// SPDX-License-Identifier: Apache-2.0
#include "apps/auto_batch.h"

#include <algorithm>
#include <optional>

#include "engine/error.h"
#include "engine/process.h"

namespace layup {
namespace {

// Plans one batch size. Nothing if the network cannot train with it: batch norm wants more than one
// value per channel, also in the last batch of an epoch and in the parts of a step.
std::optional<SessionPlan> try_batch(RunConfig& config, const RunOptions& options,
                                     const MachineProfile* machine, std::int64_t batch) {
  config.train.batch = batch;
  try {
    return plan_run(config, options, config.memory.policy, machine);
  } catch (const GraphError&) {
    return std::nullopt;
  }
}

class BatchSearch {
 public:
  BatchSearch(RunConfig& config, const RunOptions& options, const MachineProfile* machine)
      : config_(config), options_(options), machine_(machine), most_(config.data.train->size()) {}

  AutoBatch search() {
    std::int64_t good = smallest_trainable();
    std::int64_t bad = good + 1;
    while (bad <= most_ && fits(bad)) {
      good = bad;
      bad = std::min(2 * bad, std::max(most_, bad + 1));
    }
    while (bad - good > 1) {
      const std::int64_t middle = good + (bad - good) / 2;
      (fits(middle) ? good : bad) = middle;
    }
    AutoBatch found;
    // The last of these that can train in every part of an epoch.
    for (found.batch = good; found.batch > 0; --found.batch) {
      const std::optional<SessionPlan> plan = try_batch(config_, options_, machine_, found.batch);
      if (!plan || !plan->feasible) continue;
      found.bytes = plan->planned_peak_bytes;
      break;
    }
    if (good < most_)
      if (const auto next = plan_near(good + 1)) found.next_bytes = next->planned_peak_bytes;
    config_.train.batch = found.batch;
    return found;
  }

 private:
  // A batch size that cannot train for its last batch says nothing about memory: that of the next
  // smaller or larger one that can is looked at instead.
  std::optional<SessionPlan> plan_near(std::int64_t batch) {
    for (const std::int64_t other : {batch, batch + 1, batch - 1, batch + 2, batch - 2}) {
      if (other < 1 || other > most_) continue;
      std::optional<SessionPlan> plan = try_batch(config_, options_, machine_, other);
      if (plan) return plan;
    }
    return std::nullopt;
  }
  bool fits(std::int64_t batch) {
    const std::optional<SessionPlan> plan = plan_near(batch);
    return plan && plan->feasible;
  }

  std::int64_t smallest_trainable() {
    constexpr std::int64_t kFarEnough = 8;
    for (std::int64_t batch = 1; batch <= std::min(most_, kFarEnough); ++batch) {
      const std::optional<SessionPlan> plan = try_batch(config_, options_, machine_, batch);
      if (!plan) continue;
      require_feasible(*plan);  // says so of this batch, the smallest there is
      return batch;
    }
    throw PlanError("no batch size was found with which the network can train");
  }

  RunConfig& config_;
  const RunOptions& options_;
  const MachineProfile* machine_;
  std::int64_t most_;
};

}  // namespace

AutoBatch choose_batch(RunConfig& config, const RunOptions& options,
                       const MachineProfile* machine) {
  if (!config.memory.budget_bytes)
    config.memory.budget_bytes = machine != nullptr
                                     ? machine->device_memory_bytes - machine->reserved_bytes
                                     : available_memory_bytes();
  return BatchSearch(config, options, machine).search();
}

}  // namespace layup
