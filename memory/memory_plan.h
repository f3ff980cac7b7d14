// SPDX-License-Identifier: Apache-2.0
// The plan of one program: what happens in which order, and where every value lies and when.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/graph/physical_graph.h"
#include "memory/tier.h"

namespace layup {

// What becomes of a value between its last use in forward and its first use in backward.
enum class Retention : std::uint8_t { keep, offload, recompute };
const char* to_string(Retention retention);

enum class ActionKind : std::uint8_t {
  run,            // an operation of PhysicalGraph::operations
  replay,         // of PhysicalGraph::replays
  offload,        // start a copy to a tier below
  wait_offload,   // compute waits for it; the device bytes are free from here on
  prefetch,       // start a copy back; the device bytes are taken from here on
  wait_prefetch,  // compute waits for it
};

struct Action {
  ActionKind kind = ActionKind::run;
  std::uint32_t operation = 0;  // of run and replay
  ValueId value{};              // of copies
  Tier tier = Tier::host;       // of offload and prefetch

  bool operator==(const Action&) const = default;
};

// A stay of a value on the device (or of a workspace): actions [begin, end), bytes at an offset.
struct Residency {
  ValueId value{};  // kWorkspace for the workspace of the action `begin`
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int64_t bytes = 0;
  std::int64_t offset = 0;
  // Index of the residency whose bytes this one takes over in place at `begin`, or -1.
  std::int32_t over = -1;

  bool operator==(const Residency&) const = default;
};
inline constexpr ValueId kWorkspace{0xFFFFFFFFU};

// Where the values that live from step to step lie; the same in all programs of a session.
struct PersistentLayout {
  std::map<std::string, std::int64_t> offsets;  // by value name
  std::int64_t bytes = 0;

  bool operator==(const PersistentLayout&) const = default;
};

struct MemoryPlan {
  std::string policy;
  std::vector<Retention> retention;  // by value
  std::vector<Action> actions;
  std::vector<Residency> residencies;
  PersistentLayout persistent;
  // By value, into the host block or the file, wherever its copies go; -1: never there.
  std::vector<std::int64_t> host_offsets;

  // All in bytes. The arena holds the persistent values first, then everything else.
  std::int64_t arena_bytes = 0;
  std::int64_t max_live_bytes = 0;  // the most that is live at one action: no packing needs less
  std::int64_t peak_action = 0;     // where
  std::int64_t host_bytes = 0;
  std::int64_t file_bytes = 0;
  // By class. Persistent classes in total, the others at their own peaks.
  std::int64_t parameter_bytes = 0;  // with BN buffers
  std::int64_t gradient_bytes = 0;   // of parameters
  std::int64_t solver_state_bytes = 0;
  std::int64_t activation_bytes = 0;  // with saved values and gradients of activations
  std::int64_t workspace_bytes = 0;
  std::int64_t staging_bytes = 0;

  bool operator==(const MemoryPlan&) const = default;
};

// The operation of a run or replay.
const PhysicalOperation& operation_of(const PhysicalGraph& graph, const Action& action);
std::string to_string(const MemoryPlan& plan, const PhysicalGraph& graph);

}  // namespace layup
