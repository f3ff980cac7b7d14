// SPDX-License-Identifier: Apache-2.0
// Who makes and who reads every value: what policies and schedules are built on.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/graph/physical_graph.h"

namespace layup {

struct ValueUse {
  std::int32_t producer = -1;          // operation that writes it first; -1: persistent
  std::int32_t replay = -1;            // index into PhysicalGraph::replays; -1: cannot be replayed
  std::int32_t last_forward_use = -1;  // operation (its producer if nobody reads it in forward)
  std::int32_t num_backward_uses = 0;  // reads by operations of backward
  std::int32_t first_backward_use = -1;
};

struct ValueUses {
  std::int32_t first_backward = 0;  // operation; all before it is loading and forward
  std::vector<ValueUse> of;         // by value
  // Values made in forward and read in backward, in the order in which they are made: those that a
  // policy decides on.
  std::vector<ValueId> candidates;

  const ValueUse& at(ValueId value) const { return of[index(value)]; }
};

ValueUses find_uses(const PhysicalGraph& graph);

}  // namespace layup
