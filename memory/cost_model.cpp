// SPDX-License-Identifier: Apache-2.0
#include "memory/cost_model.h"

#include <numeric>

namespace layup {
namespace {

MachineProfile small_machine(int threads) {
  MachineProfile profile;
  profile.name = "estimate";
  profile.peak_flops_per_s = 5e10 * threads;
  profile.conv_efficiency = 0.7;
  profile.linear_efficiency = 0.7;
  profile.memory_bandwidth_bytes_per_s = 2e10;
  profile.offload_bytes_per_s = profile.prefetch_bytes_per_s = 8e9;
  profile.latency_us = 10;
  profile.launch_us = 2;
  return profile;
}

}  // namespace

double CostModel::compute_ms() const { return std::accumulate(run_ms.begin(), run_ms.end(), 0.0); }

CostModel CostModel::with_file_as_host() const {
  CostModel cost = *this;
  cost.offload_bytes_per_s = std::min(offload_bytes_per_s, file.write_bytes_per_s);
  cost.prefetch_bytes_per_s = std::min(prefetch_bytes_per_s, file.read_bytes_per_s);
  cost.latency_ms = std::max(latency_ms, file.latency_us * 1e-3);
  cost.interference = file.interference;
  return cost;
}

CostModel cost_of_profile(const PhysicalGraph& graph, const MachineProfile& profile) {
  CostModel cost;
  cost.source = "profile " + profile.name;
  for (const PhysicalOperation& op : graph.operations)
    cost.run_ms.push_back(profile.operation_ms(op));
  for (const PhysicalOperation& op : graph.replays)
    cost.replay_ms.push_back(profile.operation_ms(op));
  cost.offload_bytes_per_s = profile.offload_bytes_per_s;
  cost.prefetch_bytes_per_s = profile.prefetch_bytes_per_s;
  cost.latency_ms = profile.latency_us * 1e-3;
  cost.file = profile.file;
  return cost;
}

CostModel estimate_cost(const PhysicalGraph& graph) {
  CostModel cost = cost_of_profile(graph, small_machine(graph.threads));
  cost.source = "estimate";
  return cost;
}

}  // namespace layup
