// SPDX-License-Identifier: Apache-2.0
#include "scheduler/executor.h"

#include "engine/error.h"

namespace layup {
namespace {

void issue(const BoundInstruction& bound, Device& device, TimeSpan* time) {
  const Instruction& instruction = *bound.instruction;
  for (const EventId event : instruction.waits) device.wait(instruction.stream, event);
  switch (instruction.kind) {
    case Instruction::Kind::kernel:
      device.launch(instruction.stream, bound.kernel, bound.args, time);
      break;
    case Instruction::Kind::copy_out:
      device.copy(instruction.stream, bound.host, bound.reads[0], bound.bytes, time);
      break;
    case Instruction::Kind::copy_in:
      device.copy(instruction.stream, bound.writes[0], bound.host, bound.bytes, time);
      break;
  }
  if (instruction.records) device.record(instruction.stream, *instruction.records);
}

}  // namespace

void execute(const BoundProgram& program, Device& device, std::span<TimeSpan> times) {
  LAYUP_ASSERT(times.empty() || times.size() == program.size());
  TimeSpan* time = times.empty() ? nullptr : times.data();
  for (const BoundInstruction& bound : program)
    issue(bound, device, time == nullptr ? nullptr : time++);
  device.synchronize();
}

const BoundInstruction* execute_checked(
    const BoundProgram& program, Device& device,
    const std::function<bool(const BoundInstruction&)>& is_good) {
  for (const BoundInstruction& bound : program) {
    issue(bound, device, nullptr);
    device.synchronize();
    if (!is_good(bound)) return &bound;
  }
  return nullptr;
}

}  // namespace layup
