// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/program.h"

namespace layup {

// Plan -> instructions: operands get their offsets, copies go to their streams, and every copy gets
// the events that order it against compute (one recorded before it, one after it). Ends with
// validate_program.
Program lower(const PhysicalGraph& graph, const MemoryPlan& plan);

}  // namespace layup
