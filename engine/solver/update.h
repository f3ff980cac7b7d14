// SPDX-License-Identifier: Apache-2.0
// What the update kernels of all solvers share.
#pragma once

#include <cstdint>

#include "engine/parallel.h"
#include "engine/solver/solver.h"
#include "engine/step_state.h"

namespace layup {

// Waking threads costs more than a pass over a small parameter. All or one: a team of another size
// would be allocated anew. An update is elementwise, so the number never changes its bits.
constexpr int update_threads(std::int64_t count, int threads) {
  constexpr std::int64_t kWorthWaking = 32768;
  return count < kWorthWaking ? 1 : threads;
}

// The guard of every update (solver.h): false when nothing may change, because a check failed
// before or because this gradient is not finite, which it then records.
bool may_update(StepState& state, const float* gradient, std::int64_t count,
                std::int32_t parameter_index, int threads);

}  // namespace layup
