// SPDX-License-Identifier: Apache-2.0
#include "scheduler/lower.h"

#include "engine/error.h"
#include "scheduler/validate_program.h"

namespace layup {
namespace {

class Lowering {
 public:
  Lowering(const PhysicalGraph& graph, const MemoryPlan& plan)
      : graph_(graph),
        plan_(plan),
        current_(graph.values.size(), nullptr),
        workspace_at_(plan.actions.size(), nullptr),
        next_of_value_(graph.values.size()) {}

  Program lower() {
    program_.arena_bytes = plan_.arena_bytes;
    program_.host_bytes = plan_.host_bytes;
    index_residencies();
    for (std::size_t at = 0; at < plan_.actions.size(); ++at) {
      const Action& action = plan_.actions[at];
      if (action.kind != ActionKind::run && action.kind != ActionKind::replay)
        throw PlanError("copies are not lowered yet");
      lower_kernel(action, static_cast<std::int32_t>(at));
    }
    return std::move(program_);
  }

 private:
  void index_residencies() {
    for (const Residency& stay : plan_.residencies) {
      if (stay.value == kWorkspace) {
        for (std::int32_t at = stay.begin; at < stay.end; ++at)
          if (operation_of(graph_, plan_.actions[static_cast<std::size_t>(at)]).workspace_bytes <=
              stay.bytes)
            if (workspace_at_[static_cast<std::size_t>(at)] == nullptr || stay.begin == at)
              workspace_at_[static_cast<std::size_t>(at)] = &stay;
        continue;
      }
      next_of_value_[index(stay.value)].push_back(&stay);
      if (is_persistent(graph_.value(stay.value).kind))
        program_.persistent.push_back({stay.value, stay.offset, stay.bytes});
    }
  }

  Operand operand(ValueId value, std::int32_t at) {
    const Residency*& stay = current_[index(value)];
    if (stay == nullptr || at < stay->begin || at >= stay->end) {
      stay = nullptr;
      for (const Residency* candidate : next_of_value_[index(value)])
        if (candidate->begin <= at && at < candidate->end) stay = candidate;
    }
    LAYUP_ASSERT(stay != nullptr);  // validate_plan saw to it
    return {value, stay->offset, graph_.value(value).bytes};
  }

  void lower_kernel(const Action& action, std::int32_t at) {
    const PhysicalOperation& op = operation_of(graph_, action);
    Instruction instruction;
    instruction.action = at;
    instruction.source = action.kind;
    instruction.operation = action.operation;
    for (const ValueId value : op.reads) instruction.reads.push_back(operand(value, at));
    for (const ValueId value : op.writes) instruction.writes.push_back(operand(value, at));
    if (op.workspace_bytes > 0) {
      const Residency* workspace = workspace_at_[static_cast<std::size_t>(at)];
      LAYUP_ASSERT(workspace != nullptr);
      instruction.workspace_offset = workspace->offset;
      instruction.workspace_bytes = op.workspace_bytes;
    }
    program_.instructions.push_back(std::move(instruction));
  }

  const PhysicalGraph& graph_;
  const MemoryPlan& plan_;
  Program program_;
  std::vector<const Residency*> current_;       // by value
  std::vector<const Residency*> workspace_at_;  // by action
  std::vector<std::vector<const Residency*>> next_of_value_;
};

}  // namespace

Program lower(const PhysicalGraph& graph, const MemoryPlan& plan) {
  Program program = Lowering(graph, plan).lower();
  validate_program(program, graph);
  return program;
}

}  // namespace layup
