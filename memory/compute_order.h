// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "memory/policy.h"
#include "memory/value_uses.h"

namespace layup {

// A stretch in which a value is away from the device; positions in ComputeOrder::actions.
struct OffloadSpan {
  ValueId value{};
  int number = 0;  // of the value's stretches; only before the first it is copied out
  std::int32_t made_at = 0;
  std::int32_t last_used_at = 0;  // before it
  std::int32_t needed_at = 0;     // first use after it
};

// Runs and replays in order, without the copies.
struct ComputeOrder {
  std::vector<Action> actions;
  std::vector<OffloadSpan> offloads;  // by made_at, then by number
};

// Operations in order; updates as soon as their gradient is complete and nobody needs the old
// parameter any more (or at the end); before each operation of backward, the replays of what it
// reads and is not there.
ComputeOrder order_compute(const PhysicalGraph& graph, const ValueUses& uses,
                           const Decisions& decisions);

}  // namespace layup
