// SPDX-License-Identifier: Apache-2.0
#include "memory/machine_profile.h"

#include <algorithm>

namespace layup {
namespace {

constexpr std::int64_t kProfileWorkspaceBytes = std::int64_t{8} << 20;
constexpr NumberRange kPositive{.min = 0, .min_excluded = true};
constexpr NumberRange kFraction{.min = 0, .max = 1, .min_excluded = true};

}  // namespace

double MachineProfile::operation_ms(const PhysicalOperation& op) const {
  const double efficiency = op.cost_kind == CostKind::conv     ? conv_efficiency
                            : op.cost_kind == CostKind::linear ? linear_efficiency
                                                               : 0;
  const double compute_s = efficiency > 0 ? op.flops / (peak_flops_per_s * efficiency) : 0;
  const double traffic_s = op.bytes_moved / (memory_bandwidth_bytes_per_s * bandwidth_efficiency);
  return std::max(compute_s, traffic_s) * 1e3 + launch_us * 1e-3;
}

double MachineProfile::offload_ms(std::int64_t bytes) const {
  return latency_us * 1e-3 + static_cast<double>(bytes) / offload_bytes_per_s * 1e3;
}

double MachineProfile::prefetch_ms(std::int64_t bytes) const {
  return latency_us * 1e-3 + static_cast<double>(bytes) / prefetch_bytes_per_s * 1e3;
}

MachineProfile read_machine_profile(const std::filesystem::path& path) {
  const JsonNode root = read_json_file(path);
  JsonErrors errors(path.string());
  JsonReader reader(root, "", errors);
  MachineProfile profile;
  profile.name = reader.require_string("name");
  profile.device_memory_bytes = reader.require_int("device_memory_bytes", {.min = 1});
  profile.reserved_bytes = reader.get_int("reserved_bytes", 0, {.min = 0});
  profile.peak_flops_per_s = reader.require_number("peak_flops_per_s", kPositive);
  if (auto efficiency = reader.get_object("efficiency")) {
    profile.conv_efficiency = efficiency->get_number("conv", 0, kFraction);
    profile.linear_efficiency = efficiency->get_number("linear", 0, kFraction);
    efficiency->finish();
  }
  profile.memory_bandwidth_bytes_per_s =
      reader.require_number("memory_bandwidth_bytes_per_s", kPositive);
  profile.bandwidth_efficiency = reader.get_number("bandwidth_efficiency", 1, kFraction);
  if (auto link = reader.get_object("link")) {
    profile.offload_bytes_per_s = link->require_number("offload_bytes_per_s", kPositive);
    profile.prefetch_bytes_per_s = link->require_number("prefetch_bytes_per_s", kPositive);
    profile.latency_us = link->get_number("latency_us", 0, {.min = 0});
    link->finish();
  } else if (!reader.has("link")) {
    reader.fail("", "\"link\" is missing");
  }
  if (auto file = reader.get_object("file")) {
    profile.file.write_bytes_per_s = file->require_number("write_bytes_per_s", kPositive);
    profile.file.read_bytes_per_s = file->require_number("read_bytes_per_s", kPositive);
    profile.file.latency_us = file->get_number("latency_us", 0, {.min = 0});
    file->finish();
  }
  profile.launch_us = reader.get_number("launch_us", 0, {.min = 0});
  reader.get_string("source", "");
  reader.get_node("calibration");
  reader.finish();
  errors.throw_if_any();
  return profile;
}

void use_profile_workspaces(PhysicalGraph& graph) {
  for (auto* operations : {&graph.operations, &graph.replays})
    for (PhysicalOperation& op : *operations)
      op.workspace_bytes =
          op.cost_kind == CostKind::conv && op.kind == OpKind::layer ? kProfileWorkspaceBytes : 0;
}

}  // namespace layup
