// SPDX-License-Identifier: Apache-2.0
// Measured costs of one machine, one device and one number of threads: made once (by
// scheduler/calibrate.h), kept in a file, read by planning.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "memory/cost_model.h"

namespace layup {

struct Calibration {
  std::string machine;  // the processor's name
  DeviceKind device = DeviceKind::reference;
  int threads = 1;
  std::map<std::string, double> operation_ms;  // by PhysicalOperation::cost_key
  double copy_bytes_per_s = 0;                 // one direction; 0: not measured
  double latency_us = 0;
  double interference = 0;                // see CostModel
  std::map<std::string, FileRates> file;  // by folder, as folder_key names it

  bool operator==(const Calibration&) const = default;
};

// Operations and replays of `graph` that have no measured cost yet, one of each key.
std::vector<const PhysicalOperation*> find_unmeasured(const PhysicalGraph& graph,
                                                      const Calibration& calibration);

// Costs of what is not measured are estimated. `spill`: the folder of the file tier, if any.
CostModel cost_of_calibration(const PhysicalGraph& graph, const Calibration& calibration,
                              const std::filesystem::path& spill = {});

// One name for a folder, however it is spelt.
std::string folder_key(const std::filesystem::path& folder);

// Where the file of this machine, device and number of threads is kept: below $LAYUP_CACHE_DIR,
// $XDG_CACHE_HOME/layup or ~/.cache/layup.
std::filesystem::path calibration_path(DeviceKind device, int threads);

// nullopt if there is none, if it is of another machine, or if it is damaged (it is only a cache).
std::optional<Calibration> read_calibration(DeviceKind device, int threads);
// Atomic. False if it cannot be written: training goes on without a cache.
bool write_calibration(const Calibration& calibration);

std::string machine_name();  // of this machine's processor

}  // namespace layup
