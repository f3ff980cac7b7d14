// SPDX-License-Identifier: Apache-2.0
#include "scheduler/session_plan.h"

#include <algorithm>
#include <chrono>

#include "engine/error.h"
#include "scheduler/lower.h"

namespace layup {
namespace {

using Wanted = StepPart;

void add_parts(const std::vector<StepPart>& parts, std::vector<Wanted>& wanted) {
  for (const StepPart& part : parts) {
    const bool is_known = std::any_of(wanted.begin(), wanted.end(), [&](const Wanted& item) {
      return item.program == part.program;
    });
    if (!is_known) wanted.push_back(part);
  }
}

std::vector<Wanted> wanted_programs(const SessionRequest& request) {
  std::vector<Wanted> wanted;
  if (request.is_training) {
    add_parts(parts_of_step(request, request.batch), wanted);
    if (request.last_batch > 0) add_parts(parts_of_step(request, request.last_batch), wanted);
  }
  if (request.evaluation_batch > 0)
    wanted.push_back({ProgramId::evaluate, request.evaluation_batch});
  if (request.last_evaluation_batch > 0)
    wanted.push_back({ProgramId::evaluate_last, request.last_evaluation_batch});
  return wanted;
}

MicroBatch micro_batch_of(ProgramId id) {
  switch (id) {
    case ProgramId::micro_first: return MicroBatch::first;
    case ProgramId::micro_middle: return MicroBatch::middle;
    case ProgramId::micro_last:
    case ProgramId::micro_tail:
    case ProgramId::micro_last_tail: return MicroBatch::last;
    default: return MicroBatch::whole;
  }
}

bool is_evaluation(ProgramId id) {
  return id == ProgramId::evaluate || id == ProgramId::evaluate_last;
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
    case ProgramId::micro_first: return "micro_first";
    case ProgramId::micro_middle: return "micro_middle";
    case ProgramId::micro_last: return "micro_last";
    case ProgramId::micro_tail: return "micro_tail";
    case ProgramId::micro_last_tail: return "micro_last_tail";
    case ProgramId::evaluate: return "evaluate";
    case ProgramId::evaluate_last: return "evaluate_last";
  }
  return "?";
}

const ProgramPlan& SessionPlan::main() const {
  for (const ProgramId id : {ProgramId::train, ProgramId::micro_last, ProgramId::micro_tail,
                             ProgramId::evaluate, ProgramId::evaluate_last})
    if (at(id)) return *at(id);
  throw PlanError("a session without programs");
}

std::vector<StepPart> parts_of_step(const SessionRequest& request, std::int64_t count) {
  const bool is_whole_batch = count == request.batch;
  const std::int64_t size = request.micro_batch;
  if (size <= 0 || count <= size)
    return {{is_whole_batch ? ProgramId::train : ProgramId::train_last, count}};
  std::vector<StepPart> parts;
  for (std::int64_t left = count; left > 0; left -= parts.back().count)
    parts.push_back({ProgramId::micro_middle, std::min(left, size)});
  parts.front().program = ProgramId::micro_first;
  parts.back().program = parts.back().count == size ? ProgramId::micro_last
                         : is_whole_batch           ? ProgramId::micro_tail
                                                    : ProgramId::micro_last_tail;
  return parts;
}

StepPart main_part(const SessionRequest& request) {
  if (!request.is_training) return {ProgramId::evaluate, request.evaluation_batch};
  if (request.micro_batch > 0 && request.micro_batch < request.batch)
    return {ProgramId::micro_last, request.micro_batch};
  return {ProgramId::train, request.batch};
}

ProgramPlan prepare_program(const GraphDef& def, const Solver* solver,
                            const SessionRequest& request, const StepPart& wanted) {
  ProgramPlan result;
  result.graph = build_graph(def, wanted.count);
  DifferentiateOptions options;
  options.staging_batch = std::max(request.batch, request.evaluation_batch);
  options.micro_batch = micro_batch_of(wanted.program);
  options.clip_norm = request.clip_norm;
  if (solver != nullptr && !is_evaluation(wanted.program))
    options.solver_states = solver->state_names();
  try {
    const TrainingGraph training = is_evaluation(wanted.program)
                                       ? inference_graph(result.graph, options)
                                       : differentiate(result.graph, options);
    result.physical =
        select_kernels(result.graph, training, request.device, request.threads, request.kernels);
  } catch (const GraphError& error) {
    if (wanted.count == request.batch || is_evaluation(wanted.program)) throw;
    throw GraphError(std::string(wanted.program == ProgramId::train_last
                                     ? "the last batch of an epoch has "
                                     : "a part of a batch (\"micro_batch\") has ") +
                     std::to_string(wanted.count) + (wanted.count == 1 ? " sample" : " samples") +
                     ", with which the network cannot train: " + error.what() +
                     "; choose another batch size or set \"drop_last\": true in \"data\"");
  }
  if (request.machine != nullptr) {
    use_profile_workspaces(result.physical);
    result.cost = cost_of_profile(result.physical, *request.machine);
  } else {
    result.cost = request.calibration != nullptr
                      ? cost_of_calibration(result.physical, *request.calibration, request.spill)
                      : estimate_cost(result.physical);
  }
  if (!request.spill.empty()) widen_alignment(result.physical, kFileAlignment);
  return result;
}

SessionPlan plan_session(const GraphDef& def, const Solver* solver, const SessionRequest& request) {
  SessionPlan session;
  session.request = request;
  const std::vector<Wanted> wanted = wanted_programs(request);
  for (const Wanted& program : wanted)
    session.programs[static_cast<int>(program.program)] =
        prepare_program(def, solver, request, program);

  for (const auto& program : session.programs)
    if (program) extend_persistent(session.persistent, program->physical);
  PlanOptions options;
  options.policy = request.policy;
  options.budget_bytes = request.budget_bytes;
  options.host_budget_bytes = request.host_budget_bytes;
  options.has_file = !request.spill.empty();
  options.updates_inside_backward = request.updates_inside_backward;
  options.persistent = &session.persistent;
  for (const Wanted& item : wanted) {
    ProgramPlan& program = *session.programs[static_cast<int>(item.program)];
    const auto start = std::chrono::steady_clock::now();
    plan_program(program, options, session.feasible);
    session.planned_peak_bytes = std::max(session.planned_peak_bytes, program.plan.arena_bytes);
    session.host_bytes = std::max(session.host_bytes, program.plan.host_bytes);
    session.file_bytes = std::max(session.file_bytes, program.plan.file_bytes);
    if (&program == &session.main())  // of one plan, the one that is reported
      session.planning_ms =
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
              .count();
  }
  for (const Wanted& item : wanted) {
    const ProgramPlan& program = *session.programs[static_cast<int>(item.program)];
    const std::optional<std::int64_t> minimum =
        minimum_budget_bytes(program.physical, program.cost, options);
    session.minimum_budget_bytes =
        minimum && session.minimum_budget_bytes
            ? std::optional(std::max(*session.minimum_budget_bytes, *minimum))
            : std::nullopt;
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
      throw PlanError(
          subject + amount(memory.arena_bytes) + " of device memory but the budget is " +
          amount(*request.budget_bytes) + "; its peak is at \"" + program->peak_operation + "\". " +
          (plan.minimum_budget_bytes
               ? "The smallest budget that works is " + amount(*plan.minimum_budget_bytes) +
                     "; raise the budget or lower the batch size"
               : "No device budget works within the host budget of " +
                     amount(*request.host_budget_bytes) + ": the plan needs " +
                     amount(memory.host_bytes) + " of host memory"));
    if (request.host_budget_bytes && memory.host_bytes > *request.host_budget_bytes)
      throw PlanError(subject + amount(memory.host_bytes) +
                      " of host memory but the host budget is " +
                      amount(*request.host_budget_bytes) +
                      "; raise the host budget, name a folder for the rest (\"spill\": "
                      "\"file:FOLDER\"), choose a policy that recomputes instead (layup, "
                      "sublinear), or lower the batch size");
  }
  throw PlanError("the plan does not fit");
}

}  // namespace layup
