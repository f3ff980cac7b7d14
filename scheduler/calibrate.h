// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>

#include "engine/device/device.h"
#include "memory/calibration.h"

namespace layup {

// Asked between two operations; true: measure no more.
using StopRequest = std::function<bool()>;

// Measures on `device` every operation and replay of `graph` that the calibration lacks (in a few
// bursts on made-up operands, one operation's operands in memory at a time), and copies to the host
// tier if those are lacking and `with_copies` (see measure_copies: memory that a plan
// without a host tier may not have). Returns the number of operations measured.
int calibrate(const Graph& graph, const PhysicalGraph& physical, const Solver* solver,
              Device& device, Calibration& calibration, const StopRequest& stops = {},
              bool with_copies = true);

}  // namespace layup
