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
  if (request.machine != nullptr) {
    use_profile_workspaces(result.physical);
    result.cost = cost_of_profile(result.physical, *request.machine);
  } else {
    result.cost = request.calibration != nullptr
                      ? cost_of_calibration(result.physical, *request.calibration)
                      : estimate_cost(result.physical);
  }
  return result;
}

// Plans, lowers and checks one program; what is measured as planning.
void plan_program(ProgramPlan& program, const PlanOptions& options, bool& feasible) {
  PlanResult result = plan_memory(program.physical, program.cost, options);
  feasible = feasible && result.feasible;
  program.plan = std::move(result.plan);
  program.timeline = std::move(result.timeline);
  program.peak_operation = std::move(result.peak_operation);
  program.program = lower(program.physical, program.plan);
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
  PlanOptions options;
  options.policy = request.policy;
  options.budget_bytes = request.budget_bytes;
  options.host_budget_bytes = request.host_budget_bytes;
  options.updates_inside_backward = request.updates_inside_backward;
  options.persistent = &session.persistent;
  for (const Wanted& item : wanted) {
    ProgramPlan& program = *session.programs[static_cast<int>(item.id)];
    plan_program(program, options, session.feasible);
    session.planned_peak_bytes = std::max(session.planned_peak_bytes, program.plan.arena_bytes);
    session.host_bytes = std::max(session.host_bytes, program.plan.host_bytes);
    if (item.id == wanted.front().id)  // of one plan, the one that is reported
      session.planning_ms =
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
              .count();
  }
  for (const Wanted& item : wanted) {
    const ProgramPlan& program = *session.programs[static_cast<int>(item.id)];
    session.minimum_budget_bytes =
        std::max(session.minimum_budget_bytes,
                 minimum_budget_bytes(program.physical, program.cost, options));
  }
  return session;
}

void require_feasible(const SessionPlan& plan) {
  if (plan.feasible) return;
  const SessionRequest& request = plan.request;
  const auto amount = [](std::int64_t bytes) {
    return std::to_string(bytes) + " bytes (" + format_bytes(bytes) + ")";
  };
  for (const auto& program : plan.programs) {
    if (!program) continue;
    const MemoryPlan& memory = program->plan;
    const std::string subject = "the plan of policy \"" + memory.policy + "\" at batch " +
                                std::to_string(program->graph.batch) + " needs ";
    if (request.budget_bytes && memory.arena_bytes > *request.budget_bytes)
      throw PlanError(subject + amount(memory.arena_bytes) +
                      " of device memory but the budget is " + amount(*request.budget_bytes) +
                      "; its peak is at \"" + program->peak_operation +
                      "\". The smallest budget that works is " + amount(plan.minimum_budget_bytes) +
                      "; raise the budget or lower the batch size");
    if (request.host_budget_bytes && memory.host_bytes > *request.host_budget_bytes)
      throw PlanError(subject + amount(memory.host_bytes) +
                      " of host memory but the host budget is " +
                      amount(*request.host_budget_bytes) +
                      "; raise the host budget, choose a policy that recomputes instead (layup, "
                      "sublinear), or lower the batch size");
  }
  throw PlanError("the plan does not fit");
}

}  // namespace layup
