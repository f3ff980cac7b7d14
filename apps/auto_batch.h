// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/trainer.h"

namespace layup {

struct AutoBatch {
  std::int64_t batch = 0;
  std::int64_t bytes = 0;       // that its plan needs
  std::int64_t next_bytes = 0;  // that one more sample would need; 0 if the data set is the limit
};

// The largest batch whose plan fits the budgets (of the device: the memory available, if there is
// no budget), found by planning alone. Sets config.train.batch. Throws PlanError if not even one
// sample fits, naming what it needs.
AutoBatch choose_batch(RunConfig& config, const RunOptions& options,
                       const MachineProfile* machine = nullptr);

}  // namespace layup
