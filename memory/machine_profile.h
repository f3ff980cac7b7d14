// SPDX-License-Identifier: Apache-2.0
// The figures of a machine on which plans are compared. The format of profiles/*.json: an operation
// takes max(FLOP / (peak x efficiency of its kind), bytes / (bandwidth x bandwidth_efficiency)) +
// launch; a copy takes latency + bytes / rate of its direction, both directions at once. The rates
// of the file tier ("file") may be left out; see FileRates.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/graph/physical_graph.h"

namespace layup {

// The file tier of a machine that nobody has measured: a plain NVMe drive.
struct FileRates {
  double write_bytes_per_s = 1e9;
  double read_bytes_per_s = 2e9;
  double latency_us = 100;
  double interference = 0;  // see CostModel; measured, not part of a profile

  bool operator==(const FileRates&) const = default;
};

struct MachineProfile {
  std::string name;
  std::int64_t device_memory_bytes = 0;
  std::int64_t reserved_bytes = 0;
  double peak_flops_per_s = 0;
  double conv_efficiency = 0;  // 0: bound by bandwidth
  double linear_efficiency = 0;
  double memory_bandwidth_bytes_per_s = 0;
  double bandwidth_efficiency = 1;
  double offload_bytes_per_s = 0;
  double prefetch_bytes_per_s = 0;
  double latency_us = 0;
  double launch_us = 0;
  FileRates file;

  double operation_ms(const PhysicalOperation& op) const;
  double offload_ms(std::int64_t bytes) const;
  double prefetch_ms(std::int64_t bytes) const;
};

// Throws ConfigError with positions. What stands under "calibration" is not read.
MachineProfile read_machine_profile(const std::filesystem::path& path);

// On a profile a convolution pass has 8 MiB of workspace, whatever this build's kernels need, and
// other operations have none.
void use_profile_workspaces(PhysicalGraph& graph);

}  // namespace layup
