// SPDX-License-Identifier: Apache-2.0
// All that varies from step to step. It lies in one small block on the device, so that
// instructions (and CUDA graphs made of them) never change.
#pragma once

#include <cstdint>

namespace layup {

// Written by the host before a step, read by kernels.
struct StepState {
  std::int64_t step = 0;          // global training step, from 0
  std::uint64_t seed = 0;         // of the run
  std::int64_t first_sample = 0;  // index of this batch's first sample in the global step
  float learning_rate = 0;
  float loss_gradient = 1;      // upstream gradient of the loss (1, or a weight or scale)
  std::int32_t input_slot = 0;  // which staging slot holds this step's batch
  std::int32_t first_row = 0;   // of the slot: where this program's micro-batch begins
  // Written by kernels: 0 = good; otherwise what first was not finite. Updates are skipped from
  // then on, and the host stops before anything is saved.
  std::int32_t failed = 0;  // 0 good, 1 the loss, 2 + k: gradient of parameter k
};

constexpr std::int32_t kFailedLoss = 1;
constexpr std::int32_t kFailedGradient = 2;

}  // namespace layup
