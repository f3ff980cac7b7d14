// SPDX-License-Identifier: Apache-2.0
#include "apps/auto_batch.h"

#include <algorithm>
#include <optional>

#include "engine/error.h"
#include "engine/process.h"

namespace layup {
namespace {

// Nothing if the network cannot train with so few samples per channel (a batch, or the last one of
// an epoch); otherwise what the plan needs.
std::optional<SessionPlan> try_batch(RunConfig& config, const RunOptions& options,
                                     const MachineProfile* machine, std::int64_t batch) {
  config.train.batch = batch;
  try {
    return plan_run(config, options, config.memory.policy, machine);
  } catch (const GraphError&) {
    return std::nullopt;
  }
}

}  // namespace

AutoBatch choose_batch(RunConfig& config, const RunOptions& options,
                       const MachineProfile* machine) {
  if (!config.memory.budget_bytes)
    config.memory.budget_bytes = machine != nullptr
                                     ? machine->device_memory_bytes - machine->reserved_bytes
                                     : available_memory_bytes();
  const auto fits = [&](std::int64_t batch) {
    const std::optional<SessionPlan> plan = try_batch(config, options, machine, batch);
    return plan && plan->feasible;
  };
  const std::int64_t most = config.data.train->size();
  // The first batch that the network can train with at all: batch norm may want two.
  std::int64_t good = 1;
  while (good < std::min<std::int64_t>(most, 4) && !fits(good)) ++good;
  if (!fits(good)) {
    const std::optional<SessionPlan> plan = try_batch(config, options, machine, good);
    if (plan) require_feasible(*plan);
    throw PlanError("no batch size was found with which the network can train");
  }
  std::int64_t bad = good + 1;
  while (bad <= most && fits(bad)) {
    good = bad;
    bad = std::min(2 * bad, std::max(most, bad + 1));
  }
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  AutoBatch found;
  if (good < most)
    if (const auto next = try_batch(config, options, machine, good + 1))
      found.next_bytes = next->planned_peak_bytes;
  const std::optional<SessionPlan> plan = try_batch(config, options, machine, good);
  LAYUP_ASSERT(plan && plan->feasible);
  found.batch = good;
  found.bytes = plan->planned_peak_bytes;
  return found;
}

}  // namespace layup
