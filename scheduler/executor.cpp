// SPDX-License-Identifier: Apache-2.0
#include "scheduler/executor.h"

#include "engine/error.h"

namespace layup {
namespace {

void issue(const BoundInstruction& bound, Device& device, TimeSpan* time) {
  const Instruction& instruction = *bound.instruction;
  const StreamId stream = instruction.stream;
  for (const EventId event : instruction.waits) device.wait(stream, event);
  if (instruction.kind == Instruction::Kind::kernel)
    device.launch(stream, bound.kernel, bound.args, time);
  else if (instruction.tier == Tier::file)
    device.copy_file(stream, bound.file, time);
  else if (instruction.kind == Instruction::Kind::copy_out)
    device.copy(stream, bound.host, bound.reads[0], bound.bytes, time);
  else
    device.copy(stream, bound.writes[0], bound.host, bound.bytes, time);
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
