// SPDX-License-Identifier: Apache-2.0
#include "scheduler/session_plan.h"

#include <algorithm>
#include <chrono>

#include "engine/error.h"
#include "scheduler/lower.h"

namespace layup {
namespace {

struct Wanted {
  ProgramId id;
  std::int64_t batch;
};

std::vector<Wanted> wanted_programs(const SessionRequest& request) {
  std::vector<Wanted> wanted;
  if (request.is_training) {
    wanted.push_back({ProgramId::train, request.batch});
    if (request.last_batch > 0) wanted.push_back({ProgramId::train_last, request.last_batch});
  }
  if (request.evaluation_batch > 0)
    wanted.push_back({ProgramId::evaluate, request.evaluation_batch});
  if (request.last_evaluation_batch > 0)
    wanted.push_back({ProgramId::evaluate_last, request.last_evaluation_batch});
  return wanted;
}

bool is_evaluation(ProgramId id) {
  return id == ProgramId::evaluate || id == ProgramId::evaluate_last;
}

ProgramPlan prepare(const GraphDef& def, const Solver* solver, const SessionRequest& request,
                    const Wanted& wanted) {
  ProgramPlan result;
  result.graph = build_graph(def, wanted.batch);
  DifferentiateOptions options;
  options.staging_batch = std::max(request.batch, request.evaluation_batch);
  if (solver != nullptr && !is_evaluation(wanted.id)) options.solver_states = solver->state_names();
  try {
    const TrainingGraph training = is_evaluation(wanted.id) ? inference_graph(result.graph, options)
                                                            : differentiate(result.graph, options);
    result.physical = select_kernels(result.graph, training, request.device, request.threads);
  } catch (const GraphError& error) {
    if (wanted.id != ProgramId::train_last) throw;
    throw GraphError("the last batch of an epoch has " + std::to_string(wanted.batch) +
                     (wanted.batch == 1 ? " sample" : " samples") +
                     ", with which the network cannot train: " + error.what() +
                     "; choose another batch size or set \"drop_last\": true in \"data\"");
  }
  if (request.machine != nullptr) use_profile_workspaces(result.physical);
  return result;
}

}  // namespace

const char* to_string(ProgramId id) {
  switch (id) {
    case ProgramId::train: return "train";
    case ProgramId::train_last: return "train_last";
    case ProgramId::evaluate: return "evaluate";
    case ProgramId::evaluate_last: return "evaluate_last";
  }
  return "?";
}

const ProgramPlan& SessionPlan::main() const {
  for (const auto& program : programs)
    if (program) return *program;
  throw PlanError("a session without programs");
}

SessionPlan plan_session(const GraphDef& def, const Solver* solver, const SessionRequest& request) {
  SessionPlan session;
  session.request = request;
  const std::vector<Wanted> wanted = wanted_programs(request);
  for (const Wanted& program : wanted)
    session.programs[static_cast<int>(program.id)] = prepare(def, solver, request, program);

  const auto start = std::chrono::steady_clock::now();
  session.persistent = layout_persistent(session.main().physical);
  for (const Wanted& item : wanted) {
    ProgramPlan& program = *session.programs[static_cast<int>(item.id)];
    PlanOptions options;
    options.policy = request.policy;
    options.budget_bytes = request.budget_bytes;
    options.machine = request.machine;
    options.persistent = &session.persistent;
    PlanResult result = plan_memory(program.physical, options);
    program.plan = std::move(result.plan);
    program.peak_operation = std::move(result.peak_operation);
    program.program = lower(program.physical, program.plan);
    session.feasible = session.feasible && result.feasible;
    session.minimum_budget_bytes =
        std::max(session.minimum_budget_bytes, result.minimum_budget_bytes);
    session.planned_peak_bytes = std::max(session.planned_peak_bytes, program.plan.arena_bytes);
    session.host_bytes = std::max(session.host_bytes, program.plan.host_bytes);
    if (item.id == wanted.front().id)  // of one plan, the one that is reported
      session.planning_ms =
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
              .count();
  }
  return session;
}

void require_feasible(const SessionPlan& plan) {
  if (plan.feasible) return;
  const ProgramPlan* worst = nullptr;
  for (const auto& program : plan.programs)
    if (program && (worst == nullptr || program->plan.arena_bytes > worst->plan.arena_bytes))
      worst = &*program;
  throw PlanError(
      "the plan of policy \"" + worst->plan.policy + "\" needs " +
      std::to_string(worst->plan.arena_bytes) + " bytes (" + format_bytes(worst->plan.arena_bytes) +
      ") but the budget is " + std::to_string(*plan.request.budget_bytes) + " bytes (" +
      format_bytes(*plan.request.budget_bytes) + "); its peak is at \"" + worst->peak_operation +
      "\". The smallest budget that works at batch " + std::to_string(worst->graph.batch) + " is " +
      std::to_string(plan.minimum_budget_bytes) + " bytes (" +
      format_bytes(plan.minimum_budget_bytes) + "); raise the budget or lower the batch size");
}

}  // namespace layup
