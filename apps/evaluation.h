// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/trainer.h"
#include "data/batch_loader.h"

namespace layup {

// Where a loader puts batches for this session.
std::vector<BatchSlot> staging_slots(const Session& session);

// Runs the whole test set through the session. The batch loader of training must be stopped: both
// fill the same staging slots. Ends early when `stop` is set.
EvaluationReport evaluate_session(const RunConfig& config, Session& session,
                                  const std::atomic<int>* stop);

}  // namespace layup
