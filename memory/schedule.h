// SPDX-License-Identifier: Apache-2.0
// Decisions -> the order of everything: operations, replays and copies.
#pragma once

#include <optional>
#include <vector>

#include "memory/compute_order.h"
#include "memory/cost_model.h"
#include "memory/policy.h"
#include "memory/value_uses.h"

namespace layup {

// A schedule before its copies get their final places: enough to tell how much memory it needs.
//
// The operations of the step are in order, with a replay before the first use in backward of each
// value that is recomputed (and of what it needs). Copies are as tight as can be: an offload starts
// when the value is made and is waited for right after its last use in forward, a prefetch starts
// right before the first use in backward.
struct DraftSchedule {
  ComputeOrder order;
  std::vector<std::int64_t> live_bytes;  // by compute action (with the copies right before it)
  std::int64_t peak_bytes = 0;           // of transient values
  std::vector<Tier> tiers;               // by value; of those that are offloaded
  std::int64_t host_bytes = 0;
};

// With a file tier the host takes values of up to `host_bytes_before_file` in all, those that are
// made last first (they have the least time for their copies), and the file takes the rest;
// without one the host takes all.
DraftSchedule draft_schedule(const PhysicalGraph& graph, const ValueUses& uses,
                             const Decisions& decisions,
                             std::optional<std::int64_t> host_bytes_before_file = {});

// All actions in order. With CopyStyle::gated, waits for offloads come as late and prefetches start
// as early as the copies need to run hidden, by the predicted times, where that does not raise the
// live bytes over `fill` of the draft's peak. (A plan that is full all the time is hard to pack: a
// little less leaves gaps room.) With CopyStyle::layer_by_layer (vDNN) an offload runs beside the
// layer that reads the value last, and a prefetch beside the layer above; it may raise the peak.
std::vector<Action> place_copies(const PhysicalGraph& graph, const CostModel& cost,
                                 const Decisions& decisions, const DraftSchedule& draft,
                                 double fill = 1);

// The bytes that are live at each action: persistent values are left out, a value in place over
// another counts once.
std::vector<std::int64_t> live_bytes(const std::vector<Residency>& residencies,
                                     std::size_t num_actions, const PhysicalGraph& graph);

}  // namespace layup
