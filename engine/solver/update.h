// SPDX-License-Identifier: Apache-2.0
// What the update kernels of all solvers share.
#pragma once

#include <cstdint>

#include "engine/parallel.h"
#include "engine/solver/solver.h"
#include "engine/step_state.h"

namespace layup {

// Waking threads costs more than a pass over a small parameter. An update is elementwise, so the
// number of threads never changes its bits.
constexpr int update_threads(std::int64_t count, int threads) {
  constexpr std::int64_t kLeastPerThread = 16384;
  const std::int64_t useful = count / kLeastPerThread;
  return useful < 1 ? 1 : static_cast<int>(useful < threads ? useful : threads);
}

// The guard of every update (solver.h): false when nothing may change, because a check failed
// before or because this gradient is not finite, which it then records.
bool may_update(StepState& state, const float* gradient, std::int64_t count,
                std::int32_t parameter_index, int threads);

}  // namespace layup
