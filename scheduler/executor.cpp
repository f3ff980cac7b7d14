// SPDX-License-Identifier: Apache-2.0
#include "scheduler/executor.h"

namespace layup {
namespace {

void issue(const BoundInstruction& bound, Device& device) {
  const Instruction& instruction = *bound.instruction;
  for (const EventId event : instruction.waits) device.wait(instruction.stream, event);
  switch (instruction.kind) {
    case Instruction::Kind::kernel:
      device.launch(instruction.stream, bound.kernel, bound.args);
      break;
    case Instruction::Kind::copy_out:
      device.copy(instruction.stream, bound.host, bound.reads[0], bound.bytes);
      break;
    case Instruction::Kind::copy_in:
      device.copy(instruction.stream, bound.writes[0], bound.host, bound.bytes);
      break;
  }
  if (instruction.records) device.record(instruction.stream, *instruction.records);
}

}  // namespace

void execute(const BoundProgram& program, Device& device) {
  for (const BoundInstruction& bound : program) issue(bound, device);
  device.synchronize();
}

const BoundInstruction* execute_checked(
    const BoundProgram& program, Device& device,
    const std::function<bool(const BoundInstruction&)>& is_good) {
  for (const BoundInstruction& bound : program) {
    issue(bound, device);
    device.synchronize();
    if (!is_good(bound)) return &bound;
  }
  return nullptr;
}

}  // namespace layup
