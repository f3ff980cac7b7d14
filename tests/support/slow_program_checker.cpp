// SPDX-License-Identifier: Apache-2.0
#include "tests/support/slow_program_checker.h"

#include <algorithm>
#include <map>
#include <vector>

namespace layup::test {
namespace {

constexpr std::int64_t kPiece = 64;
constexpr int kNothing = -2;
constexpr int kBeforeStep = -1;
constexpr int kDevice = 0;
constexpr int kHost = 1;
constexpr int kFile = 2;

// What a piece of memory holds: a value, as operation `made_by` of the graph leaves it.
struct Piece {
  ValueId value = kWorkspace;
  int made_by = kNothing;

  bool operator==(const Piece&) const = default;
};

struct Access {
  std::size_t instruction = 0;
  int memory = kDevice;
  bool writes = false;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

class Checker {
 public:
  Checker(const Program& program, const PhysicalGraph& graph) : program_(program), graph_(graph) {}

  std::string find_fault() {
    if (!order_instructions()) return "an event";
    list_accesses();
    if (!accesses_are_inside()) return "bounds";
    if (!conflicts_are_ordered()) return "a race";
    if (!operands_are_apart()) return "operands of one instruction";
    return follow_values();
  }

 private:
  bool is_kernel(const Instruction& instruction) const {
    return instruction.kind == Instruction::Kind::kernel;
  }
  const PhysicalOperation& operation(const Instruction& instruction) const {
    return operation_of(graph_, {instruction.source, instruction.operation, {}});
  }

  // before_[i][j]: j is surely done when i starts.
  bool order_instructions() {
    const std::size_t count = program_.instructions.size();
    before_.assign(count, std::vector<char>(count, 0));
    for (std::size_t i = 0; i < count; ++i) {
      const Instruction& self = program_.instructions[i];
      if (self.records && static_cast<std::int64_t>(index(*self.records)) >= program_.num_events)
        return false;
      for (std::size_t j = 0; j < i; ++j)
        if (program_.instructions[j].stream == self.stream) comes_after(i, j);
      for (const EventId event : self.waits) {
        std::size_t j = i;
        while (j > 0 && program_.instructions[j - 1].records != event) --j;
        if (j == 0) return false;
        comes_after(i, j - 1);
      }
    }
    return true;
  }
  void comes_after(std::size_t i, std::size_t j) {
    before_[i][j] = 1;
    for (std::size_t k = 0; k < j; ++k) before_[i][k] |= before_[j][k];
  }

  void list_accesses() {
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& self = program_.instructions[i];
      for (const Operand& operand : self.reads)
        accesses_.push_back({i, kDevice, false, operand.offset, operand.offset + operand.bytes});
      for (const Operand& operand : self.writes)
        accesses_.push_back({i, kDevice, true, operand.offset, operand.offset + operand.bytes});
      if (is_kernel(self)) {
        if (self.workspace_bytes > 0)
          accesses_.push_back({i, kDevice, true, self.workspace_offset,
                               self.workspace_offset + self.workspace_bytes});
        continue;
      }
      const bool goes_out = self.kind == Instruction::Kind::copy_out;
      const Operand& copied = goes_out ? self.reads[0] : self.writes[0];
      accesses_.push_back({i, self.tier == Tier::file ? kFile : kHost, goes_out, self.host_offset,
                           self.host_offset + copied.bytes});
    }
  }

  bool accesses_are_inside() const {
    return std::all_of(accesses_.begin(), accesses_.end(), [&](const Access& access) {
      return access.begin >= 0 && access.begin < access.end &&
             access.end <= (access.memory == kDevice ? program_.arena_bytes
                            : access.memory == kHost ? program_.host_bytes
                                                     : program_.file_bytes);
    });
  }

  static bool meet(const Access& a, const Access& b) {
    return a.memory == b.memory && a.begin < b.end && b.begin < a.end;
  }

  bool conflicts_are_ordered() const {
    for (const Access& later : accesses_)
      for (const Access& earlier : accesses_) {
        if (earlier.instruction >= later.instruction) break;
        if (meet(earlier, later) && (earlier.writes || later.writes) &&
            before_[later.instruction][earlier.instruction] == 0)
          return false;
      }
    return true;
  }

  // Within one kernel writes meet nothing but the operand that they may lie over.
  bool operands_are_apart() const {
    for (const Instruction& self : program_.instructions) {
      if (!is_kernel(self)) continue;
      const PhysicalOperation& op = operation(self);
      if (self.reads.size() != op.reads.size() || self.writes.size() != op.writes.size() ||
          self.workspace_bytes < op.workspace_bytes)
        return false;
      std::vector<Operand> written = self.writes;
      written.push_back({kWorkspace, self.workspace_offset, self.workspace_bytes});
      for (std::size_t i = 0; i < written.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j)
          if (overlap(written[i], written[j])) return false;
        for (std::size_t j = 0; j < self.reads.size(); ++j)
          if (overlap(written[i], self.reads[j]) &&
              !may_lie_over(op, self.reads[j], static_cast<int>(j), written[i],
                            static_cast<int>(i)))
            return false;
      }
    }
    return true;
  }
  static bool overlap(const Operand& a, const Operand& b) {
    return a.bytes > 0 && b.bytes > 0 && a.offset < b.offset + b.bytes &&
           b.offset < a.offset + a.bytes;
  }
  static bool may_lie_over(const PhysicalOperation& op, const Operand& read, int number_read,
                           const Operand& written, int number_written) {
    return read.offset == written.offset && read.bytes == written.bytes &&
           std::any_of(op.in_place.begin(), op.in_place.end(), [&](const InPlace& pair) {
             return pair.read == number_read && pair.write == number_written;
           });
  }

  // The last operation before number `before` of the graph that writes the value.
  int maker(ValueId value, int before) const {
    for (int i = before - 1; i >= 0; --i) {
      const auto& writes = graph_.operations[static_cast<std::size_t>(i)].writes;
      if (std::find(writes.begin(), writes.end(), value) != writes.end()) return i;
    }
    return kBeforeStep;
  }
  // Where in the graph the instruction belongs; a replay where its forward pass stands.
  int place_of(const Instruction& instruction) const {
    if (instruction.source == ActionKind::run) return static_cast<int>(instruction.operation);
    const PhysicalOperation& replay = operation(instruction);
    for (std::size_t i = 0; i < graph_.operations.size(); ++i) {
      const PhysicalOperation& op = graph_.operations[i];
      const bool is_its_own =
          replay.kind == OpKind::load
              ? op.kind == OpKind::load && op.name == replay.name
              : op.kind == OpKind::layer && op.pass == Pass::forward && op.node == replay.node;
      if (is_its_own) return static_cast<int>(i);
    }
    return -1;
  }

  using Memory = std::vector<Piece>;

  static bool holds(const Memory& memory, std::int64_t offset, std::int64_t bytes,
                    const Piece& wanted) {
    for (std::int64_t at = offset / kPiece; at < (offset + bytes) / kPiece; ++at)
      if (!(memory[static_cast<std::size_t>(at)] == wanted)) return false;
    return true;
  }
  static void put(Memory& memory, std::int64_t offset, std::int64_t bytes, const Piece& piece) {
    for (std::int64_t at = offset / kPiece; at < (offset + bytes) / kPiece; ++at)
      memory[static_cast<std::size_t>(at)] = piece;
  }

  // Conflicts are ordered, so that the order of issue shows what every read sees.
  std::string follow_values() {
    device_.assign(static_cast<std::size_t>(program_.arena_bytes / kPiece), {});
    host_.assign(static_cast<std::size_t>(program_.host_bytes / kPiece), {});
    file_.assign(static_cast<std::size_t>(program_.file_bytes / kPiece), {});
    for (const Operand& operand : program_.persistent)
      put(device_, operand.offset, operand.bytes, {operand.value, kBeforeStep});
    for (const Instruction& instruction : program_.instructions) {
      const std::string fault = is_kernel(instruction) ? run(instruction) : copy(instruction);
      if (!fault.empty()) return fault;
    }
    const int end = static_cast<int>(graph_.operations.size());
    for (const Operand& operand : program_.persistent)
      if (!holds(device_, operand.offset, operand.bytes,
                 {operand.value, maker(operand.value, end)}))
        return "the end of the step";
    for (int i = 0; i < end; ++i)
      if (runs_[i] != 1) return "operations that run not once";
    return "";
  }

  std::string run(const Instruction& instruction) {
    const PhysicalOperation& op = operation(instruction);
    const int place = place_of(instruction);
    const bool is_run = instruction.source == ActionKind::run;
    if (is_run) ++runs_[place];
    const int seen = is_run ? place : place + 1;  // a replay reads what its forward pass saved
    for (std::size_t i = 0; i < op.reads.size(); ++i) {
      const Operand& operand = instruction.reads[i];
      if (operand.value != op.reads[i] || operand.bytes != graph_.value(operand.value).bytes)
        return "an operand of " + op.name;
      if (!holds(device_, operand.offset, operand.bytes,
                 {operand.value, maker(operand.value, seen)}))
        return "a read of " + graph_.value(operand.value).name + " by " + op.name;
    }
    for (std::size_t i = 0; i < op.writes.size(); ++i) {
      const Operand& operand = instruction.writes[i];
      if (operand.value != op.writes[i] || operand.bytes != graph_.value(operand.value).bytes)
        return "a result of " + op.name;
      // What lives from step to step is updated where it lies.
      if (is_persistent(graph_.value(operand.value).kind) &&
          !holds(device_, operand.offset, operand.bytes,
                 {operand.value, maker(operand.value, place)}))
        return "an update by " + op.name;
    }
    if (instruction.workspace_bytes > 0)
      put(device_, instruction.workspace_offset, instruction.workspace_bytes, {});
    for (const Operand& operand : instruction.writes)
      put(device_, operand.offset, operand.bytes, {operand.value, place});
    return "";
  }

  std::string copy(const Instruction& instruction) {
    const bool goes_out = instruction.kind == Instruction::Kind::copy_out;
    const Operand& operand = goes_out ? instruction.reads[0] : instruction.writes[0];
    const bool is_file = instruction.tier == Tier::file;
    Memory& below = is_file ? file_ : host_;
    Memory& from = goes_out ? device_ : below;
    Memory& to = goes_out ? below : device_;
    const std::int64_t read_at = goes_out ? operand.offset : instruction.host_offset;
    const std::int64_t written_at = goes_out ? instruction.host_offset : operand.offset;
    if (operand.bytes != graph_.value(operand.value).bytes) return "the size of a copy";
    for (const std::int64_t number : {operand.bytes, read_at, written_at})
      if (is_file && number % kFileAlignment != 0) return "the alignment of a copy";
    const Piece piece = from[static_cast<std::size_t>(read_at / kPiece)];
    if (piece.value != operand.value || !holds(from, read_at, operand.bytes, piece))
      return "a copy";
    put(to, written_at, operand.bytes, piece);
    return "";
  }

  const Program& program_;
  const PhysicalGraph& graph_;
  std::vector<std::vector<char>> before_;
  std::vector<Access> accesses_;
  Memory device_;
  Memory host_;
  Memory file_;
  std::map<int, int> runs_;
};

}  // namespace

std::string find_fault(const Program& program, const PhysicalGraph& graph) {
  return Checker(program, graph).find_fault();
}

}  // namespace layup::test
