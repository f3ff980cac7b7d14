// SPDX-License-Identifier: Apache-2.0
#include "apps/plan_report.h"

#include <algorithm>

#include "apps/text_table.h"

namespace layup {
namespace {

struct LayerCounts {
  std::int64_t keep = 0;
  std::int64_t offload = 0;
  std::int64_t recompute = 0;
};

// A layer is counted by what becomes of it: computed again at least once; else its output (or what
// takes over the output's bytes in place) copied out; else kept.
LayerCounts count_layers(const ProgramPlan& program) {
  const PhysicalGraph& graph = program.physical;
  std::vector<char> is_copied(graph.values.size(), 0);
  std::vector<char> is_replayed(program.graph.nodes.size(), 0);
  for (const Action& action : program.plan.actions) {
    if (action.kind == ActionKind::offload) is_copied[index(action.value)] = 1;
    if (action.kind == ActionKind::replay) {
      const PhysicalOperation& replay = graph.replays[action.operation];
      if (replay.kind == OpKind::layer) is_replayed[index(replay.node)] = 1;
    }
  }
  // Later residencies take over earlier ones: pass the mark back along the chain.
  const std::vector<Residency>& stays = program.plan.residencies;
  for (std::size_t i = stays.size(); i-- > 0;)
    if (stays[i].over >= 0 && is_copied[index(stays[i].value)] != 0)
      is_copied[index(stays[static_cast<std::size_t>(stays[i].over)].value)] = 1;
  LayerCounts counts;
  for (const PhysicalOperation& op : graph.operations) {
    if (op.kind != OpKind::layer || (op.pass != Pass::forward && op.pass != Pass::evaluate))
      continue;
    const bool copied = std::any_of(op.writes.begin(), op.writes.end(), [&](ValueId value) {
      return graph.value(value).kind == ValueKind::activation && is_copied[index(value)] != 0;
    });
    (is_replayed[index(op.node)] != 0 ? counts.recompute
     : copied                         ? counts.offload
              : counts.keep) += 1 + static_cast<std::int64_t>(op.fused.size());
  }
  return counts;
}

// Of a whole step, all its parts together.
struct StepTimes {
  double compute_ms = 0;
  double recompute_ms = 0;
  double transfer_ms = 0;
  double stall_ms = 0;
  double step_ms = 0;
};

StepTimes step_times(const SessionPlan& session) {
  const SessionRequest& request = session.request;
  const std::vector<StepPart> parts = request.is_training
                                          ? parts_of_step(request, request.batch)
                                          : std::vector<StepPart>{main_part(request)};
  StepTimes times;
  for (const StepPart& part : parts) {
    const ProgramPlan& program = *session.at(part.program);
    times.compute_ms += program.cost.compute_ms();
    times.recompute_ms += program.timeline.recompute_ms;
    times.transfer_ms += program.timeline.transfer_ms;
    times.stall_ms += program.timeline.stall_ms;
    times.step_ms += program.timeline.step_ms;
  }
  return times;
}

std::int64_t batch_of(const SessionPlan& session) {
  return session.request.is_training ? session.request.batch : session.request.evaluation_batch;
}

std::string percent_over(double ms, double base_ms) {
  const double percent = (ms / base_ms - 1) * 100;
  return format_fixed(percent < 0.05 ? 0 : percent, 1) + " %";
}

}  // namespace

Json plan_to_json(const SessionPlan& session) {
  const ProgramPlan& program = session.main();
  const MemoryPlan& plan = program.plan;
  const LayerCounts layers = count_layers(program);
  Json json;
  json["policy"] = plan.policy;
  json["requested_policy"] = session.request.policy;
  json["device"] = to_string(session.request.device);
  if (session.request.machine != nullptr) json["machine"] = session.request.machine->name;
  json["batch"] = batch_of(session);
  json["budget_bytes"] =
      session.request.budget_bytes ? Json(*session.request.budget_bytes) : Json(nullptr);
  json["feasible"] = session.feasible;
  json["minimum_budget_bytes"] =
      session.minimum_budget_bytes ? Json(*session.minimum_budget_bytes) : Json(nullptr);
  json["planned_peak_bytes"] = session.planned_peak_bytes;
  json["arena_bytes"] = plan.arena_bytes;
  json["max_live_bytes"] = plan.max_live_bytes;
  json["parameter_bytes"] = plan.parameter_bytes;
  json["gradient_bytes"] = plan.gradient_bytes;
  json["solver_state_bytes"] = plan.solver_state_bytes;
  json["activation_bytes"] = plan.activation_bytes;
  json["workspace_bytes"] = plan.workspace_bytes;
  json["staging_bytes"] = plan.staging_bytes;
  json["host_bytes"] = session.host_bytes;
  json["file_bytes"] = session.file_bytes;
  json["num_layers"] = program.physical.num_layers;
  json["num_keep"] = layers.keep;
  json["num_offload"] = layers.offload;
  json["num_recompute"] = layers.recompute;
  json["num_replays"] =
      std::count_if(plan.actions.begin(), plan.actions.end(), [&](const Action& a) {
        return a.kind == ActionKind::replay &&
               operation_of(program.physical, a).kind == OpKind::layer;
      });
  const StepTimes times = step_times(session);
  json["compute_ms"] = times.compute_ms;
  json["recompute_ms"] = times.recompute_ms;
  json["transfer_ms"] = times.transfer_ms;
  json["stall_ms"] = times.stall_ms;
  json["step_ms"] = times.step_ms;
  json["costs"] = program.cost.source;
  json["lower_bound_ms"] = nullptr;
  json["planning_ms"] = session.planning_ms;
  json["peak_operation"] = program.peak_operation;
  return json;
}

std::string plan_to_text(const SessionPlan& session) {
  const ProgramPlan& program = session.main();
  const MemoryPlan& plan = program.plan;
  const LayerCounts layers = count_layers(program);
  std::string text;
  text += "plan: policy " + plan.policy + ", device " + to_string(session.request.device) +
          ", batch " + std::to_string(batch_of(session)) +
          (program.graph.batch != batch_of(session)
               ? " in parts of " + std::to_string(program.graph.batch)
               : "") +
          ", " + std::to_string(program.physical.num_layers) + " layers\n";
  text += "  memory " + format_bytes(session.planned_peak_bytes) + " (" +
          std::to_string(session.planned_peak_bytes) + " bytes)" +
          (session.request.budget_bytes
               ? " of a budget of " + format_bytes(*session.request.budget_bytes)
               : ", no budget") +
          "\n";
  text +=
      "  parameters " + format_bytes(plan.parameter_bytes) + ", solver state " +
      format_bytes(plan.solver_state_bytes) + ", gradients " + format_bytes(plan.gradient_bytes) +
      ", activations " + format_bytes(plan.activation_bytes) + ", workspace " +
      format_bytes(plan.workspace_bytes) + ", staging " + format_bytes(plan.staging_bytes) + "\n";
  text += "  layers kept " + std::to_string(layers.keep) + ", offloaded " +
          std::to_string(layers.offload) + ", recomputed " + std::to_string(layers.recompute) +
          "; host " + format_bytes(session.host_bytes) +
          (session.request.spill.empty() ? "" : ", file " + format_bytes(session.file_bytes)) +
          "; peak at \"" + program.peak_operation + "\"; planned in " +
          format_fixed(session.planning_ms, 1) + " ms\n";
  const StepTimes times = step_times(session);
  text += "  predicted step " + format_fixed(times.step_ms, 1) + " ms, " +
          percent_over(times.step_ms, times.compute_ms) + " over keeping everything (recompute " +
          format_fixed(times.recompute_ms, 1) + " ms, stalls " + format_fixed(times.stall_ms, 1) +
          " ms; costs: " + program.cost.source + ")\n";
  return text;
}

std::string plans_to_table(const std::vector<SessionPlan>& plans) {
  TextTable table({"policy", "feasible", "peak", "minimum", "host", "file", "keep", "offload",
                   "recompute", "step ms", "over compute"});
  for (const SessionPlan& session : plans) {
    const ProgramPlan& program = session.main();
    const LayerCounts layers = count_layers(program);
    const StepTimes times = step_times(session);
    const std::string& asked = session.request.policy;
    const std::string& chosen = program.plan.policy;
    table.add({asked == chosen ? chosen : asked + " (" + chosen + ")",
               session.feasible ? "yes" : "no", format_bytes(session.planned_peak_bytes),
               session.minimum_budget_bytes ? format_bytes(*session.minimum_budget_bytes) : "-",
               format_bytes(session.host_bytes), format_bytes(session.file_bytes),
               std::to_string(layers.keep), std::to_string(layers.offload),
               std::to_string(layers.recompute), format_fixed(times.step_ms, 1),
               format_fixed(times.step_ms / times.compute_ms, 3)});
  }
  return table.to_text();
}

Json summary_to_json(const Graph& graph) {
  Json layers = Json::array();
  double total_flops = 0;
  for (const Node& node : graph.nodes) {
    const double flops = node.info.pass(Pass::forward).flops;
    total_flops += flops;
    layers.push_back({{"name", node.name},
                      {"type", node.type},
                      {"output", node.info.output.shape},
                      {"num_parameters", num_parameters(node)},
                      {"forward_flops", flops}});
  }
  return {{"network", graph.name},
          {"input", graph.tensor(graph.input).spec.shape},
          {"num_layers", graph.nodes.size()},
          {"num_parameters", num_parameters(graph)},
          {"forward_flops", total_flops},
          {"layers", layers}};
}

std::string summary_to_text(const Graph& graph) {
  TextTable table({"layer", "type", "output", "parameters", "forward MFLOP"});
  double total_flops = 0;
  for (const Node& node : graph.nodes) {
    const std::int64_t parameters = num_parameters(node);
    const double flops = node.info.pass(Pass::forward).flops;
    total_flops += flops;
    table.add({node.name, node.type, to_string(node.info.output.shape), format_grouped(parameters),
               format_fixed(flops * 1e-6, 2)});
  }
  return table.to_text() + graph.name + ": " + std::to_string(graph.nodes.size()) + " layers, " +
         format_grouped(num_parameters(graph)) + " parameters, input " +
         to_string(graph.tensor(graph.input).spec.shape) + ", forward " +
         format_fixed(total_flops * 1e-9, 3) + " GFLOP\n";
}

}  // namespace layup
