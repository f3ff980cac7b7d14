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
        next_of_value_(graph.values.size()),
        copy_of_value_(graph.values.size(), 0) {}

  Program lower() {
    program_.arena_bytes = plan_.arena_bytes;
    program_.host_bytes = plan_.host_bytes;
    program_.file_bytes = plan_.file_bytes;
    index_residencies();
    for (std::size_t at = 0; at < plan_.actions.size(); ++at) {
      const Action& action = plan_.actions[at];
      const auto number = static_cast<std::int32_t>(at);
      switch (action.kind) {
        case ActionKind::run:
        case ActionKind::replay: lower_kernel(action, number); break;
        case ActionKind::offload: lower_copy(action, number, Instruction::Kind::copy_out); break;
        case ActionKind::prefetch: lower_copy(action, number, Instruction::Kind::copy_in); break;
        case ActionKind::wait_offload:
        case ActionKind::wait_prefetch: wait_for_copy(action.value); break;
      }
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
    instruction.waits = std::move(waits_);
    waits_.clear();
    last_compute_ = program_.instructions.size();
    program_.instructions.push_back(std::move(instruction));
  }

  // A copy comes after all compute issued before it (which made the value, or used the bytes), and
  // after the copies that compute is about to wait for (whose bytes it may take).
  void lower_copy(const Action& action, std::int32_t at, Instruction::Kind kind) {
    Instruction instruction;
    instruction.kind = kind;
    instruction.action = at;
    instruction.tier = action.tier;
    instruction.host_offset = plan_.host_offsets[index(action.value)];
    instruction.waits = waits_;
    if (last_compute_) instruction.waits.push_back(event_of(*last_compute_));
    if (kind == Instruction::Kind::copy_out) {
      instruction.stream = StreamId::copy_out;
      instruction.reads.push_back(operand(action.value, at));
    } else {
      instruction.stream = StreamId::copy_in;
      instruction.writes.push_back(operand(action.value, at));
      instruction.waits.push_back(event_of(copy_of_value_[index(action.value)]));
    }
    copy_of_value_[index(action.value)] = program_.instructions.size();
    program_.instructions.push_back(std::move(instruction));
    event_of(program_.instructions.size() - 1);
  }

  void wait_for_copy(ValueId value) { waits_.push_back(event_of(copy_of_value_[index(value)])); }

  EventId event_of(std::size_t instruction) {
    std::optional<EventId>& records = program_.instructions[instruction].records;
    if (!records) records = EventId{static_cast<std::uint32_t>(program_.num_events++)};
    return *records;
  }

  const PhysicalGraph& graph_;
  const MemoryPlan& plan_;
  Program program_;
  std::vector<const Residency*> current_;       // by value
  std::vector<const Residency*> workspace_at_;  // by action
  std::vector<std::vector<const Residency*>> next_of_value_;
  std::vector<std::size_t> copy_of_value_;  // its latest copy instruction
  std::vector<EventId> waits_;              // of the next compute instruction
  std::optional<std::size_t> last_compute_;
};

}  // namespace

Program lower(const PhysicalGraph& graph, const MemoryPlan& plan) {
  Program program = Lowering(graph, plan).lower();
  validate_program(program, graph);
  return program;
}

}  // namespace layup
