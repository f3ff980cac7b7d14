// SPDX-License-Identifier: Apache-2.0
#include "scheduler/step_trace.h"

#include <algorithm>
#include <limits>

#include "engine/error.h"
#include "memory/schedule.h"

namespace layup {
namespace {

struct SpanUs {
  double start = 0;
  double end = 0;
};

// A wait that is shorter comes from the clock, not from a copy.
constexpr double kShortestWaitUs = 1;

// One process of the trace.
class TimelineTracks {
 public:
  TimelineTracks(Trace& trace, int process, const char* name) : trace_(trace), process_(process) {
    trace_.name_process(process, name);
    trace_.name_thread(track(StreamId::compute), "compute");
    trace_.name_thread(track(StreamId::copy_out), "copy out");
    trace_.name_thread(track(StreamId::copy_in), "copy in");
  }

  // `spans` by instruction. Programs are added in their order.
  void add(const ProgramPlan& program, const std::vector<SpanUs>& spans) {
    add_slices(program, spans);
    count_device_bytes(program, spans);
    count_bytes_below(program, spans, Tier::host);
    if (program.plan.file_bytes > 0) count_bytes_below(program, spans, Tier::file);
  }

 private:
  TraceTrack track(StreamId stream) const {
    return {process_, 10 * process_ + 1 + static_cast<int>(stream)};
  }

  static const Operand& copied(const Instruction& copy) {
    return copy.kind == Instruction::Kind::copy_out ? copy.reads.at(0) : copy.writes.at(0);
  }

  void add_slices(const ProgramPlan& program, const std::vector<SpanUs>& spans) {
    const std::vector<Instruction>& instructions = program.program.instructions;
    std::vector<std::size_t> recorder(static_cast<std::size_t>(program.program.num_events));
    std::vector<Trace::Point> offload_of(program.physical.values.size());
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      const Instruction& instruction = instructions[i];
      if (instruction.records) recorder[index(*instruction.records)] = i;
      if (instruction.kind == Instruction::Kind::kernel) {
        add_wait(program, spans, recorder, i);
        add_kernel(program, instruction, spans[i]);
        continue;
      }
      const bool is_offload = instruction.kind == Instruction::Kind::copy_out;
      const Operand& operand = copied(instruction);
      const std::string& name = program.physical.value(operand.value).name;
      const Trace::Point point =
          trace_.add_slice(track(instruction.stream), name, spans[i].start, spans[i].end,
                           {{"kind", is_offload ? "offload" : "prefetch"},
                            {"tier", instruction.tier == Tier::file ? "file" : "host"},
                            {"bytes", operand.bytes}});
      if (is_offload)
        offload_of[index(operand.value)] = point;
      else
        trace_.add_flow(name, offload_of[index(operand.value)], point);
    }
  }

  // Compute stood still from the end of the kernel before to the end of the last copy waited for.
  void add_wait(const ProgramPlan& program, const std::vector<SpanUs>& spans,
                const std::vector<std::size_t>& recorder, std::size_t at) {
    const std::vector<Instruction>& instructions = program.program.instructions;
    const Instruction* last = nullptr;
    double last_end = compute_end_;
    for (const EventId event : instructions[at].waits) {
      const std::size_t copy = recorder[index(event)];
      if (spans[copy].end <= last_end) continue;
      last = &instructions[copy];
      last_end = spans[copy].end;
    }
    last_end = std::min(last_end, spans[at].start);
    if (last == nullptr || last_end - compute_end_ < kShortestWaitUs) return;
    const Operand& operand = copied(*last);
    trace_.add_slice(track(StreamId::compute),
                     "wait for " + program.physical.value(operand.value).name, compute_end_,
                     last_end, {{"kind", "wait"}, {"bytes", operand.bytes}});
  }

  void add_kernel(const ProgramPlan& program, const Instruction& instruction, const SpanUs& span) {
    const PhysicalOperation& op =
        operation_of(program.physical, {instruction.source, instruction.operation, {}});
    const char* kind = instruction.source == ActionKind::replay ? "recompute"
                       : op.kind == OpKind::layer               ? to_string(op.pass)
                                                                : to_string(op.kind);
    std::int64_t bytes = 0;
    for (const auto* operands : {&instruction.reads, &instruction.writes})
      for (const Operand& operand : *operands) bytes += operand.bytes;
    trace_.add_slice(track(StreamId::compute), op.name, span.start, span.end,
                     {{"kind", kind}, {"bytes", bytes}});
    compute_end_ = span.end;
  }

  // What lives at an action lives from the moment that compute comes to it.
  void count_device_bytes(const ProgramPlan& program, const std::vector<SpanUs>& spans) {
    const MemoryPlan& plan = program.plan;
    const std::vector<Instruction>& instructions = program.program.instructions;
    std::vector<std::int64_t> live =
        live_bytes(plan.residencies, plan.actions.size(), program.physical);
    // What is there all the time: values that persist, and blocks of a policy's accounting.
    const std::int64_t always = plan.max_live_bytes - *std::max_element(live.begin(), live.end());
    std::vector<double> copied_us(program.physical.values.size(), 0);
    auto instruction = instructions.begin();
    std::int64_t shown = -1;
    for (std::size_t i = 0; i < plan.actions.size(); ++i) {
      const Action& action = plan.actions[i];
      if (instruction != instructions.end() && instruction->action == static_cast<int>(i)) {
        const SpanUs& span = spans[static_cast<std::size_t>(instruction - instructions.begin())];
        const bool is_kernel = instruction->kind == Instruction::Kind::kernel;
        if (is_kernel)
          now_us_ = std::max(now_us_, span.start);
        else
          copied_us[index(action.value)] = span.end;
        if (live[i] != shown) show("device bytes", now_us_, always + live[i], plan.arena_bytes);
        if (is_kernel) now_us_ = std::max(now_us_, span.end);
        ++instruction;
      } else {  // a wait
        now_us_ = std::max(now_us_, copied_us[index(action.value)]);
        if (live[i] != shown) show("device bytes", now_us_, always + live[i], plan.arena_bytes);
      }
      shown = live[i];
    }
    for (const SpanUs& span : spans) now_us_ = std::max(now_us_, span.end);
    show("device bytes", now_us_, always, plan.arena_bytes);
  }

  // A value takes its bytes of a tier from the start of its offload to the end of its last
  // prefetch.
  void count_bytes_below(const ProgramPlan& program, const std::vector<SpanUs>& spans, Tier tier) {
    const char* counter = tier == Tier::file ? "file bytes" : "host bytes";
    const std::int64_t planned =
        tier == Tier::file ? program.plan.file_bytes : program.plan.host_bytes;
    struct Change {
      double at_us;
      std::int64_t bytes;
    };
    std::vector<Change> changes;
    std::vector<std::size_t> return_of(program.physical.values.size(), 0);  // into changes
    const std::vector<Instruction>& instructions = program.program.instructions;
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      if (instructions[i].kind == Instruction::Kind::kernel || instructions[i].tier != tier)
        continue;
      const Operand& operand = copied(instructions[i]);
      if (instructions[i].kind == Instruction::Kind::copy_out) {
        changes.push_back({spans[i].start, operand.bytes});
        return_of[index(operand.value)] = changes.size();
        changes.push_back({std::numeric_limits<double>::infinity(), -operand.bytes});
      } else {
        changes[return_of[index(operand.value)]].at_us = spans[i].end;
      }
    }
    std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
      return a.at_us != b.at_us ? a.at_us < b.at_us : a.bytes < b.bytes;
    });
    std::int64_t live = 0;
    show(counter, spans.front().start, live, planned);
    for (const Change& change : changes)
      show(counter, std::min(change.at_us, now_us_), live += change.bytes, planned);
  }

  void show(const char* counter, double at_us, std::int64_t live, std::int64_t planned) {
    trace_.add_counter(process_, counter, at_us, {{"live", live}, {"planned", planned}});
  }

  Trace& trace_;
  int process_;
  double compute_end_ = 0;  // of the kernel before
  double now_us_ = 0;       // where compute is
};

}  // namespace

Trace trace_step(std::span<const ProgramPlan* const> programs, std::span<const TimeSpan> times) {
  Trace trace;
  TimelineTracks measured(trace, 1, "measured");
  TimelineTracks predicted(trace, 2, "predicted");
  std::int64_t origin_ns = std::numeric_limits<std::int64_t>::max();
  for (const TimeSpan& time : times) origin_ns = std::min(origin_ns, time.start_ns);
  double origin_ms = 0;  // of the program within the predicted step
  for (const ProgramPlan* program : programs) {
    const std::vector<Instruction>& instructions = program->program.instructions;
    LAYUP_ASSERT(instructions.size() <= times.size());
    std::vector<SpanUs> spans;
    for (const TimeSpan& time : times.first(instructions.size()))
      spans.push_back({static_cast<double>(time.start_ns - origin_ns) / 1e3,
                       static_cast<double>(time.end_ns - origin_ns) / 1e3});
    times = times.subspan(instructions.size());
    measured.add(*program, spans);
    spans.clear();
    for (const Instruction& instruction : instructions) {
      const Interval& interval =
          program->timeline.intervals.at(static_cast<std::size_t>(instruction.action));
      spans.push_back({1e3 * (origin_ms + interval.start_ms), 1e3 * (origin_ms + interval.end_ms)});
    }
    predicted.add(*program, spans);
    origin_ms += program->timeline.step_ms;
  }
  return trace;
}

}  // namespace layup
