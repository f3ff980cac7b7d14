// SPDX-License-Identifier: Apache-2.0
#include "memory/calibration.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>

#include "engine/atomic_file.h"
#include "engine/error.h"

namespace layup {
namespace {

constexpr int kFormat = 2;
constexpr NumberRange kPart{.min = 0, .max = kMostInterference};
constexpr NumberRange kPositive{.min = 0, .min_excluded = true};

void read_file_rates(JsonReader& reader, Calibration& calibration) {
  auto folders = reader.get_object("file");  // older files have none
  if (!folders) return;
  for (const JsonMember& member : *folders->node().object()) {
    auto rates = folders->get_object(member.first);
    if (!rates) continue;
    FileRates& file = calibration.file[member.first];
    file.write_bytes_per_s = rates->require_number("write_bytes_per_s", kPositive);
    file.read_bytes_per_s = rates->require_number("read_bytes_per_s", kPositive);
    file.latency_us = rates->require_number("latency_us", {.min = 0});
    file.interference = rates->require_number("interference", kPart);
  }
}

}  // namespace

std::vector<const PhysicalOperation*> find_unmeasured(const PhysicalGraph& graph,
                                                      const Calibration& calibration) {
  std::vector<const PhysicalOperation*> found;
  std::set<std::string_view> seen;
  for (const auto* operations : {&graph.operations, &graph.replays})
    for (const PhysicalOperation& op : *operations)
      if (!op.writes.empty() && !calibration.operation_ms.contains(op.cost_key) &&
          seen.insert(op.cost_key).second)
        found.push_back(&op);
  return found;
}

std::string folder_key(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::path canonical = std::filesystem::weakly_canonical(folder, error);
  if (error) return folder.string();
  if (!canonical.has_filename()) canonical = canonical.parent_path();  // "a/b/"
  return canonical.string();
}

CostModel cost_of_calibration(const PhysicalGraph& graph, const Calibration& calibration,
                              const std::filesystem::path& spill) {
  CostModel cost = estimate_cost(graph);
  std::size_t num_estimated = 0;
  const auto fill = [&](const std::vector<PhysicalOperation>& operations, std::vector<double>& ms) {
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const auto found = calibration.operation_ms.find(operations[i].cost_key);
      if (found != calibration.operation_ms.end())
        ms[i] = found->second;
      else if (!operations[i].writes.empty())
        ++num_estimated;
    }
  };
  fill(graph.operations, cost.run_ms);
  fill(graph.replays, cost.replay_ms);
  cost.source = "calibration";
  if (num_estimated > 0)
    cost.source += ", " + std::to_string(num_estimated) + " of " +
                   std::to_string(graph.operations.size() + graph.replays.size()) +
                   " operations estimated";
  if (calibration.copy_bytes_per_s > 0) {
    cost.offload_bytes_per_s = cost.prefetch_bytes_per_s = calibration.copy_bytes_per_s;
    cost.latency_ms = calibration.latency_us * 1e-3;
    cost.interference = calibration.interference;
  }
  const auto rates = calibration.file.find(folder_key(spill));
  if (!spill.empty() && rates != calibration.file.end()) cost.file = rates->second;
  return cost;
}

std::filesystem::path calibration_path(DeviceKind device, int threads) {
  std::filesystem::path folder;
  if (const char* own = std::getenv("LAYUP_CACHE_DIR")) {
    folder = own;
  } else if (const char* cache = std::getenv("XDG_CACHE_HOME")) {
    folder = std::filesystem::path(cache) / "layup";
  } else if (const char* home = std::getenv("HOME")) {
    folder = std::filesystem::path(home) / ".cache" / "layup";
  } else {
    folder = std::filesystem::temp_directory_path() / "layup-cache";
  }
  return folder / ("calibration-" + std::string(to_string(device)) + "-" + std::to_string(threads) +
                   ".json");
}

std::optional<Calibration> read_calibration(DeviceKind device, int threads) {
  const std::filesystem::path path = calibration_path(device, threads);
  if (!std::filesystem::exists(path)) return std::nullopt;
  try {
    const JsonNode root = read_json_file(path);
    JsonErrors errors(path.string());
    JsonReader reader(root, "", errors);
    Calibration calibration;
    calibration.device = device;
    calibration.threads = threads;
    calibration.machine = reader.require_string("machine");
    calibration.copy_bytes_per_s = reader.require_number("copy_bytes_per_s", {.min = 0});
    calibration.latency_us = reader.require_number("latency_us", {.min = 0});
    calibration.interference = reader.require_number("interference", kPart);
    read_file_rates(reader, calibration);
    const std::int64_t format = reader.require_int("format");
    if (const JsonNode* operations = reader.get_node("operation_ms");
        operations != nullptr && operations->object() != nullptr)
      for (const JsonMember& member : *operations->object())
        if (const auto* ms = std::get_if<double>(&member.second.value))
          calibration.operation_ms.emplace(member.first, *ms);
    if (!errors.empty() || format != kFormat || calibration.machine != machine_name())
      return std::nullopt;
    return calibration;
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

bool write_calibration(const Calibration& calibration) {
  const std::filesystem::path path = calibration_path(calibration.device, calibration.threads);
  Json operations = Json::object();
  for (const auto& [key, ms] : calibration.operation_ms) operations[key] = ms;
  Json files = Json::object();
  for (const auto& [folder, rates] : calibration.file)
    files[folder] = {{"write_bytes_per_s", rates.write_bytes_per_s},
                     {"read_bytes_per_s", rates.read_bytes_per_s},
                     {"latency_us", rates.latency_us},
                     {"interference", rates.interference}};
  const Json root = {{"format", kFormat},
                     {"machine", calibration.machine},
                     {"copy_bytes_per_s", calibration.copy_bytes_per_s},
                     {"latency_us", calibration.latency_us},
                     {"interference", calibration.interference},
                     {"file", std::move(files)},
                     {"operation_ms", std::move(operations)}};
  const std::string text = root.dump(1) + "\n";
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  try {
    AtomicFile file(path, static_cast<std::int64_t>(text.size()));
    file.write(text.data(), static_cast<std::int64_t>(text.size()));
    file.commit();
    return true;
  } catch (const DataError&) {
    return false;
  }
}

std::string machine_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

}  // namespace layup
