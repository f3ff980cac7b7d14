// SPDX-License-Identifier: Apache-2.0
#include "scheduler/program.h"

namespace layup {

std::string to_string(const Program& program, const PhysicalGraph& graph) {
  std::string text;
  const auto list = [&](const std::vector<Operand>& operands) {
    std::string names;
    for (const Operand& operand : operands)
      names += (names.empty() ? "" : ", ") + graph.value(operand.value).name + "@" +
               std::to_string(operand.offset);
    return names;
  };
  for (const Instruction& instruction : program.instructions) {
    text += std::string(to_string(instruction.stream)) + ": ";
    const std::string of_tier = instruction.tier == Tier::file ? " (file)" : "";
    switch (instruction.kind) {
      case Instruction::Kind::kernel:
        text += operation_of(graph, {instruction.source, instruction.operation, {}}).name;
        break;
      case Instruction::Kind::copy_out: text += "copy out" + of_tier; break;
      case Instruction::Kind::copy_in: text += "copy in" + of_tier; break;
    }
    text += " (" + list(instruction.reads) + ") -> (" + list(instruction.writes) + ")";
    for (const EventId event : instruction.waits) text += " waits " + std::to_string(index(event));
    if (instruction.records) text += " records " + std::to_string(index(*instruction.records));
    text += "\n";
  }
  return text;
}

}  // namespace layup
