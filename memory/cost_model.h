// SPDX-License-Identifier: Apache-2.0
// What every operation and every copy of a graph is thought to cost. Planning reads costs and never
// measures: they come from a machine profile, from a saved calibration, or from an estimate.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "memory/machine_profile.h"
#include "memory/tier.h"

namespace layup {

// Of CostModel::interference: a computation never stands still because a copy runs.
inline constexpr double kMostInterference = 0.95;

struct CostModel {
  std::string source;              // "profile NAME", "calibration" (and what it lacks), "estimate"
  std::vector<double> run_ms;      // by operation
  std::vector<double> replay_ms;   // by replay
  double offload_bytes_per_s = 0;  // both directions at once
  double prefetch_bytes_per_s = 0;
  double latency_ms = 0;
  // The part of its speed that computation loses while a copy of the host tier runs beside it, in
  // each direction: on a CPU a copy is one more thread. Of the file tier: file.interference.
  double interference = 0;
  FileRates file;

  // A copy of the file tier crosses the link to the host as well, piece by piece: the slower of
  // the two counts.
  double offload_ms(std::int64_t bytes, Tier tier = Tier::host) const {
    const double host_ms = latency_ms + static_cast<double>(bytes) / offload_bytes_per_s * 1e3;
    return tier == Tier::host ? host_ms : std::max(host_ms, file_ms(bytes, file.write_bytes_per_s));
  }
  double prefetch_ms(std::int64_t bytes, Tier tier = Tier::host) const {
    const double host_ms = latency_ms + static_cast<double>(bytes) / prefetch_bytes_per_s * 1e3;
    return tier == Tier::host ? host_ms : std::max(host_ms, file_ms(bytes, file.read_bytes_per_s));
  }
  double interference_of(Tier tier) const {
    return tier == Tier::host ? interference : file.interference;
  }
  // What a value's copies out and back take from computation that runs beside them.
  double load_ms(std::int64_t bytes, Tier tier = Tier::host) const {
    return interference_of(tier) * (offload_ms(bytes, tier) + prefetch_ms(bytes, tier));
  }
  // The same with the file tier in the place of the host's: for policies, which see one tier.
  CostModel with_file_as_host() const;
  // The work of the step without any recompute.
  double compute_ms() const;

 private:
  double file_ms(std::int64_t bytes, double bytes_per_s) const {
    return file.latency_us * 1e-3 + static_cast<double>(bytes) / bytes_per_s * 1e3;
  }
};

CostModel cost_of_profile(const PhysicalGraph& graph, const MachineProfile& profile);
// Round figures of a small machine, for a graph that nobody has measured: good enough to tell a
// convolution from a ReLU.
CostModel estimate_cost(const PhysicalGraph& graph);

}  // namespace layup
