// SPDX-License-Identifier: Apache-2.0
// What the executor runs: instructions for several streams, each with the events that it waits for
// and the one that it records. Everything is decided; offsets are into the arena, the host
// block and the file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "memory/memory_plan.h"

namespace layup {

struct Operand {
  ValueId value{};
  std::int64_t offset = 0;
  std::int64_t bytes = 0;

  bool operator==(const Operand&) const = default;
};

struct Instruction {
  enum class Kind : std::uint8_t { kernel, copy_out, copy_in };
  Kind kind = Kind::kernel;
  StreamId stream = StreamId::compute;
  std::int32_t action = 0;         // of the plan that it was lowered from
  std::vector<EventId> waits;      // before it starts
  std::optional<EventId> records;  // when it is done
  // Of a kernel: its operation (by ActionKind run or replay), operands and workspace.
  ActionKind source = ActionKind::run;
  std::uint32_t operation = 0;
  std::vector<Operand> reads;
  std::vector<Operand> writes;
  std::int64_t workspace_offset = 0;
  std::int64_t workspace_bytes = 0;
  // Of a copy: the value on the device (reads[0] of copy_out, writes[0] of copy_in) and here, in
  // the host block or in the file.
  Tier tier = Tier::host;
  std::int64_t host_offset = 0;

  bool operator==(const Instruction&) const = default;
};

struct Program {
  std::vector<Instruction> instructions;  // in the order in which the host issues them
  std::int64_t num_events = 0;
  std::int64_t arena_bytes = 0;
  std::int64_t host_bytes = 0;
  std::int64_t file_bytes = 0;
  std::vector<Operand> persistent;  // there before the program starts

  bool operator==(const Program&) const = default;
};

std::string to_string(const Program& program, const PhysicalGraph& graph);

}  // namespace layup
