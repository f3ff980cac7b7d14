// SPDX-License-Identifier: Apache-2.0
#include "scheduler/validate_program.h"

#include <algorithm>
#include <array>
#include <map>

#include "engine/error.h"

namespace layup {
namespace {

// How many instructions of each stream have surely been done.
using Clock = std::array<std::int64_t, kNumStreams>;

void join(Clock& clock, const Clock& other) {
  for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

// What a range of bytes holds and who touched it last.
struct Content {
  ValueId value = kWorkspace;    // kWorkspace: nothing that may be read
  std::size_t write_stream = 0;  // of the last write
  std::int64_t write_time = 0;
  Clock read_times{};  // of the last read on each stream

  bool operator==(const Content&) const = default;
};

// Disjoint ranges of bytes; unknown ranges are free.
class ByteMap {
 public:
  // Calls visit(content or null) for each part of [begin, end).
  template <typename Visit>
  void visit(std::int64_t begin, std::int64_t end, const Visit& visit) {
    split(begin);
    split(end);
    std::int64_t at = begin;
    for (auto part = parts_.lower_bound(begin); part != parts_.end() && part->first < end; ++part) {
      if (part->first > at) visit(static_cast<Content*>(nullptr));
      visit(&part->second.content);
      at = part->second.end;
    }
    if (at < end) visit(static_cast<Content*>(nullptr));
  }
  void assign(std::int64_t begin, std::int64_t end, const Content& content) {
    split(begin);
    split(end);
    parts_.erase(parts_.lower_bound(begin), parts_.lower_bound(end));
    parts_.emplace(begin, Part{end, content});
  }

 private:
  struct Part {
    std::int64_t end = 0;
    Content content;
  };
  void split(std::int64_t at) {
    auto part = parts_.upper_bound(at);
    if (part == parts_.begin()) return;
    --part;
    if (part->first == at || part->second.end <= at) return;
    parts_.emplace(at, part->second);
    part->second.end = at;
  }
  std::map<std::int64_t, Part> parts_;
};

// What lives from step to step is written by some operations and read by others (a parameter by its
// layer's passes, then by its update): each must find it as the operations before it in the graph
// leave it.
class Versions {
 public:
  explicit Versions(const PhysicalGraph& graph)
      : graph_(graph),
        num_writes_(graph.values.size(), 0),
        of_run_(graph.operations.size()),
        of_replay_(graph.replays.size()) {
    // Of a layer by its node, of what is no layer by its name.
    std::map<std::string, std::size_t> replay_of_name;
    std::map<NodeId, std::size_t> replay_of_node;
    for (std::size_t i = 0; i < graph.replays.size(); ++i)
      if (graph.replays[i].kind == OpKind::layer)
        replay_of_node.emplace(graph.replays[i].node, i);
      else
        replay_of_name.emplace(graph.replays[i].name, i);
    std::vector<std::int32_t> writes(graph.values.size(), 0);
    for (std::size_t i = 0; i < graph.operations.size(); ++i) {
      const PhysicalOperation& op = graph.operations[i];
      of_run_[i] = expected(op, writes);
      if (op.kind != OpKind::layer && replay_of_name.contains(op.name))
        note_replay(replay_of_name.at(op.name), writes);
      if (op.kind == OpKind::layer && op.pass == Pass::forward && replay_of_node.contains(op.node))
        note_replay(replay_of_node.at(op.node), writes);
      for (const ValueId value : op.writes) ++writes[index(value)];
    }
  }

  // The first operand that the operation would find in another version, or null; its writes count
  // from then on.
  const PhysicalValue* access(const PhysicalOperation& op, bool is_replay, std::uint32_t number) {
    const std::vector<std::int32_t>& wanted = is_replay ? of_replay_[number] : of_run_[number];
    std::size_t at = 0;
    for (const auto* operands : {&op.reads, &op.writes})
      for (const ValueId value : *operands)
        if (is_persistent(graph_.value(value).kind) &&
            (at >= wanted.size() || num_writes_[index(value)] != wanted[at++]))
          return &graph_.value(value);
    for (const ValueId value : op.writes) ++num_writes_[index(value)];
    return nullptr;
  }

 private:
  // The writes before the operation of each of its persistent operands, in their order.
  std::vector<std::int32_t> expected(const PhysicalOperation& op,
                                     const std::vector<std::int32_t>& writes) const {
    std::vector<std::int32_t> found;
    for (const auto* operands : {&op.reads, &op.writes})
      for (const ValueId value : *operands)
        if (is_persistent(graph_.value(value).kind)) found.push_back(writes[index(value)]);
    return found;
  }
  void note_replay(std::size_t replay, const std::vector<std::int32_t>& writes) {
    of_replay_[replay] = expected(graph_.replays[replay], writes);
  }

  const PhysicalGraph& graph_;
  std::vector<std::int32_t> num_writes_;  // by value: so far
  std::vector<std::vector<std::int32_t>> of_run_;
  std::vector<std::vector<std::int32_t>> of_replay_;
};

class Replay {
 public:
  Replay(const Program& program, const PhysicalGraph& graph)
      : program_(program),
        graph_(graph),
        event_clock_(static_cast<std::size_t>(program.num_events)),
        event_recorded_(static_cast<std::size_t>(program.num_events), 0),
        versions_(graph),
        num_runs_(graph.operations.size(), 0) {}

  void run() {
    for (const Operand& operand : program_.persistent)
      device_.assign(operand.offset, operand.offset + operand.bytes,
                     {operand.value, 0, 0, Clock{}});
    for (const Instruction& instruction : program_.instructions) step(instruction);
    check_end();
  }

 private:
  std::string name(const Instruction& instruction) const {
    const auto number = std::to_string(&instruction - program_.instructions.data());
    if (instruction.kind != Instruction::Kind::kernel)
      return "instruction " + number + " (copy of " + graph_.value(copied(instruction).value).name +
             ")";
    return "instruction " + number + " (" +
           operation_of(graph_, {instruction.source, instruction.operation, {}}).name + ")";
  }
  [[noreturn]] void fail(const Instruction& instruction, const std::string& what) const {
    throw PlanError("invalid program: " + name(instruction) + " " + what);
  }
  static const Operand& copied(const Instruction& instruction) {
    return instruction.kind == Instruction::Kind::copy_out ? instruction.reads.at(0)
                                                           : instruction.writes.at(0);
  }

  void check_end() {
    for (std::size_t i = 0; i < num_runs_.size(); ++i)
      if (num_runs_[i] != 1)
        throw PlanError("invalid program: " + graph_.operations[i].name + " runs " +
                        std::to_string(num_runs_[i]) + " times");
    for (const Operand& operand : program_.persistent)
      device_.visit(operand.offset, operand.offset + operand.bytes, [&](const Content* content) {
        if (content == nullptr || content->value != operand.value)
          throw PlanError("invalid program: " + graph_.value(operand.value).name +
                          " is overwritten, but must be there when the step ends");
      });
  }

  void step(const Instruction& instruction) {
    stream_ = static_cast<std::size_t>(instruction.stream);
    Clock& clock = clocks_[stream_];
    for (const EventId event : instruction.waits) {
      if (index(event) >= event_clock_.size() || event_recorded_[index(event)] == 0)
        fail(instruction, "waits for an event that is not recorded before");
      join(clock, event_clock_[index(event)]);
    }
    now_ = clock[stream_] + 1;
    access(instruction);
    clock[stream_] = now_;
    if (instruction.records) {
      if (index(*instruction.records) >= event_clock_.size())
        fail(instruction, "records an event that is not there");
      event_clock_[index(*instruction.records)] = clock;
      event_recorded_[index(*instruction.records)] = 1;
    }
  }

  ByteMap& below(const Instruction& copy) { return copy.tier == Tier::file ? file_ : host_; }
  std::int64_t bytes_below(const Instruction& copy) const {
    return copy.tier == Tier::file ? program_.file_bytes : program_.host_bytes;
  }
  // The other end of a copy.
  Operand operand_below(const Instruction& copy) const {
    const Operand& operand = copied(copy);
    if (copy.tier == Tier::file &&
        (operand.offset % kFileAlignment != 0 || copy.host_offset % kFileAlignment != 0 ||
         operand.bytes % kFileAlignment != 0))
      fail(copy, "is not aligned for the file");
    return {operand.value, copy.host_offset, operand.bytes};
  }

  void access(const Instruction& instruction) {
    switch (instruction.kind) {
      case Instruction::Kind::kernel: access_kernel(instruction); return;
      case Instruction::Kind::copy_out: {
        const Operand& operand = copied(instruction);
        read(instruction, device_, operand, program_.arena_bytes);
        write(instruction, below(instruction), operand_below(instruction),
              bytes_below(instruction));
        return;
      }
      case Instruction::Kind::copy_in: {
        const Operand& operand = copied(instruction);
        read(instruction, below(instruction), operand_below(instruction), bytes_below(instruction));
        write(instruction, device_, operand, program_.arena_bytes);
        return;
      }
    }
  }

  void access_kernel(const Instruction& instruction) {
    const PhysicalOperation& op =
        operation_of(graph_, {instruction.source, instruction.operation, {}});
    if (instruction.reads.size() != op.reads.size() ||
        instruction.writes.size() != op.writes.size() ||
        instruction.workspace_bytes < op.workspace_bytes)
      fail(instruction, "has not the operands or the workspace of its operation");
    const bool is_replay = instruction.source == ActionKind::replay;
    if (!is_replay) ++num_runs_[instruction.operation];
    if (const PhysicalValue* value = versions_.access(op, is_replay, instruction.operation))
      fail(instruction, "finds " + value->name + " before or after its time");
    for (std::size_t i = 0; i < op.reads.size(); ++i) {
      if (instruction.reads[i].value != op.reads[i]) fail(instruction, "reads another value");
      read(instruction, device_, instruction.reads[i], program_.arena_bytes);
    }
    for (std::size_t i = 0; i < op.writes.size(); ++i) {
      if (instruction.writes[i].value != op.writes[i]) fail(instruction, "writes another value");
      check_against_others(instruction, op, i);
      // What lives from step to step is updated where it lies.
      if (is_persistent(graph_.value(op.writes[i]).kind))
        read(instruction, device_, instruction.writes[i], program_.arena_bytes);
    }
    if (instruction.workspace_bytes > 0)
      write(instruction, device_,
            {kWorkspace, instruction.workspace_offset, instruction.workspace_bytes},
            program_.arena_bytes);
    for (const Operand& operand : instruction.writes)
      write(instruction, device_, operand, program_.arena_bytes);
  }

  static bool overlap(const Operand& a, const Operand& b) {
    return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
  }

  // Within one instruction: writes meet reads only where that is declared, and nothing else at all.
  void check_against_others(const Instruction& instruction, const PhysicalOperation& op,
                            std::size_t number) const {
    const Operand& written = instruction.writes[number];
    for (std::size_t i = 0; i < instruction.reads.size(); ++i) {
      const Operand& read = instruction.reads[i];
      if (!overlap(written, read)) continue;
      const bool declared = std::any_of(op.in_place.begin(), op.in_place.end(), [&](InPlace pair) {
        return pair.read == static_cast<int>(i) && pair.write == static_cast<int>(number);
      });
      if (!declared || read.offset != written.offset || read.bytes != written.bytes)
        fail(instruction, "writes " + graph_.value(written.value).name + " over its operand " +
                              graph_.value(read.value).name);
    }
    for (std::size_t i = 0; i < number; ++i)
      if (overlap(written, instruction.writes[i]))
        fail(instruction, "writes two values to one place");
    const Operand workspace{kWorkspace, instruction.workspace_offset, instruction.workspace_bytes};
    if (workspace.bytes == 0) return;
    for (const auto* operands : {&instruction.reads, &instruction.writes})
      for (const Operand& operand : *operands)
        if (overlap(workspace, operand)) fail(instruction, "has its workspace over an operand");
  }

  void check_bounds(const Instruction& instruction, const Operand& operand,
                    std::int64_t limit) const {
    if (operand.offset < 0 || operand.bytes <= 0 || operand.offset + operand.bytes > limit)
      fail(instruction, "reaches outside its memory");
    if (operand.value != kWorkspace && operand.bytes != graph_.value(operand.value).bytes)
      fail(instruction, "takes " + graph_.value(operand.value).name + " for " +
                            std::to_string(operand.bytes) + " bytes");
  }

  void read(const Instruction& instruction, ByteMap& bytes, const Operand& operand,
            std::int64_t limit) {
    check_bounds(instruction, operand, limit);
    const Clock& clock = clocks_[stream_];
    bytes.visit(operand.offset, operand.offset + operand.bytes, [&](Content* content) {
      if (content == nullptr || content->value != operand.value)
        fail(instruction, "reads " + graph_.value(operand.value).name + " from bytes that hold " +
                              (content == nullptr || content->value == kWorkspace
                                   ? "nothing"
                                   : graph_.value(content->value).name));
      if (content->write_time > clock[content->write_stream])
        fail(instruction, "reads " + graph_.value(operand.value).name +
                              " without waiting for its write on another stream");
      content->read_times[stream_] = now_;
    });
  }

  void write(const Instruction& instruction, ByteMap& bytes, const Operand& operand,
             std::int64_t limit) {
    check_bounds(instruction, operand, limit);
    const Clock& clock = clocks_[stream_];
    bytes.visit(operand.offset, operand.offset + operand.bytes, [&](const Content* content) {
      if (content == nullptr) return;
      bool ordered =
          content->write_stream == stream_ || content->write_time <= clock[content->write_stream];
      for (std::size_t i = 0; i < kNumStreams; ++i)
        ordered = ordered && (i == stream_ || content->read_times[i] <= clock[i]);
      if (!ordered)
        fail(instruction, "writes over " +
                              (content->value == kWorkspace ? std::string("a workspace")
                                                            : graph_.value(content->value).name) +
                              " while another stream may still use it");
    });
    bytes.assign(operand.offset, operand.offset + operand.bytes,
                 {operand.value, stream_, now_, Clock{}});
  }

  const Program& program_;
  const PhysicalGraph& graph_;
  std::vector<Clock> event_clock_;
  std::vector<char> event_recorded_;
  std::array<Clock, kNumStreams> clocks_{};
  ByteMap device_;
  ByteMap host_;
  ByteMap file_;
  std::size_t stream_ = 0;
  std::int64_t now_ = 0;
  Versions versions_;
  std::vector<int> num_runs_;  // by operation
};

}  // namespace

void validate_program(const Program& program, const PhysicalGraph& graph) {
  Replay(program, graph).run();
}

}  // namespace layup
