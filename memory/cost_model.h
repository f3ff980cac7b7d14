// SPDX-License-Identifier: Apache-2.0
// What every operation and every copy of a graph is thought to cost. Planning reads costs and never
// measures: they come from a machine profile, from a saved calibration, or from an estimate.
#pragma once

#include <string>
#include <vector>

#include "memory/machine_profile.h"

namespace layup {

struct CostModel {
  std::string source;              // "profile NAME", "calibration", "estimate"
  std::vector<double> run_ms;      // by operation
  std::vector<double> replay_ms;   // by replay
  double offload_bytes_per_s = 0;  // both directions at once
  double prefetch_bytes_per_s = 0;
  double latency_ms = 0;

  double offload_ms(std::int64_t bytes) const {
    return latency_ms + static_cast<double>(bytes) / offload_bytes_per_s * 1e3;
  }
  double prefetch_ms(std::int64_t bytes) const {
    return latency_ms + static_cast<double>(bytes) / prefetch_bytes_per_s * 1e3;
  }
  // The work of the step without any recompute.
  double compute_ms() const;
};

CostModel cost_of_profile(const PhysicalGraph& graph, const MachineProfile& profile);
// Round figures of a small machine, for a graph that nobody has measured: good enough to tell a
// convolution from a ReLU.
CostModel estimate_cost(const PhysicalGraph& graph);

}  // namespace layup
