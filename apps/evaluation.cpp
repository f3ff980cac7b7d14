// SPDX-License-Identifier: Apache-2.0
#include "apps/evaluation.h"

#include <algorithm>

#include "apps/checkpoint.h"
#include "apps/run_plan.h"
#include "engine/error.h"

namespace layup {

std::vector<BatchSlot> staging_slots(const Session& session) {
  std::vector<BatchSlot> slots;
  for (int slot = 0; slot < kStagingSlots; ++slot)
    slots.push_back({session.staged_images(slot), session.staged_labels(slot)});
  return slots;
}

EvaluationReport evaluate_session(const RunConfig& config, Session& session,
                                  const std::atomic<int>* stop) {
  const std::int64_t batch = session.plan().request.evaluation_batch;
  LoaderOptions options;
  options.batch = batch;
  options.seed = config.train.seed;
  options.training = false;
  options.data = config.data_options;
  BatchLoader loader(*config.data.test, options, staging_slots(session));
  loader.start(0, 0);
  double loss = 0;
  std::int64_t correct = 0;
  std::int64_t seen = 0;
  while (const auto item = loader.next()) {
    StepState state;
    state.seed = config.train.seed;
    state.input_slot = item->slot;
    const StepResult result =
        session.run(item->count == batch ? ProgramId::evaluate : ProgramId::evaluate_last, state);
    loss += static_cast<double>(result.loss) * static_cast<double>(item->count);
    correct += result.correct;
    seen += item->count;
    loader.release(item->slot);
    if (stop != nullptr && stop->load() != 0) break;
  }
  const auto count = static_cast<double>(std::max<std::int64_t>(seen, 1));
  EvaluationReport report;
  report.loss = loss / count;
  report.accuracy = static_cast<double>(correct) / count;
  return report;
}

EvaluationReport evaluate(const RunConfig& config, const RunOptions& options) {
  if (!config.data.test) throw DataError("the data set has no test split to evaluate on");
  SessionRequest request = request_for(config, options);
  request.is_training = false;
  const SessionPlan plan = plan_session(config.network, nullptr, request);
  const auto device = make_cpu_device(options.device, options.link);
  Session session(*device, plan, nullptr);
  session.initialize(config.train.seed);
  load_weights(options.init.empty() ? options.resume : options.init, session);
  return evaluate_session(config, session, options.stop);
}

}  // namespace layup
