// SPDX-License-Identifier: Apache-2.0
#include "scheduler/session.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <new>

#include "engine/allocation_counter.h"
#include "engine/bf16.h"
#include "engine/error.h"
#include "engine/parallel.h"
#include "engine/process.h"
#include "engine/rng.h"

namespace layup {
namespace {

static_assert(sizeof(StepState) <= kStepStateBytes);

bool is_finite(const PhysicalValue& value, const void* data) {
  if (value.spec.dtype != DType::f32) return true;
  const auto all_finite_in = [&](const auto* values, const auto& convert) {
    return std::all_of(values, values + num_elements(value),
                       [&](auto v) { return std::isfinite(convert(v)); });
  };
  if (value.layout.element == Element::bf16)
    return all_finite_in(static_cast<const Bf16*>(data), to_float);
  return all_finite_in(static_cast<const float*>(data), std::identity());
}

}  // namespace

Session::Session(Device& device, const SessionPlan& plan, const Solver* solver, void* arena)
    : device_(device), plan_(plan), solver_(solver) {
  require_feasible(plan);
  owns_arena_ = arena == nullptr;
  arena_ = static_cast<char*>(owns_arena_ ? device.allocate(plan.planned_peak_bytes) : arena);
  try {
    if (plan.file_bytes > 0) {
      LAYUP_ASSERT(reinterpret_cast<std::uintptr_t>(arena_) % kFileAlignment == 0);
      file_ = device.open_file(plan.request.spill, plan.file_bytes);
    }
    if (plan.host_bytes > 0) host_ = static_cast<char*>(device.allocate_host(plan.host_bytes));
    state_ = reinterpret_cast<StepState*>(arena_);
    for (int i = 0; i < kNumPrograms; ++i)
      if (plan.programs[i]) bind(static_cast<ProgramId>(i));
    prepare_device();
    base_rss_bytes_ = current_rss_bytes();
    const auto start = std::chrono::steady_clock::now();
    device.touch(arena_, plan.planned_peak_bytes);
    if (host_ != nullptr) device.touch(host_, plan.host_bytes);
    fault_in_ms_ =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    new (arena_) StepState;
    collect_tensors();
  } catch (...) {
    give_back();
    throw;
  }
  allocations_at_start_ =
      device.counters().num_allocations + device.host_counters().num_allocations;
}

// Room for the events and commands of the largest program, and the threads of kernels.
void Session::prepare_device() {
  std::int64_t num_events = 0;
  std::int64_t num_commands = 1;
  for (const auto& program : plan_.programs) {
    if (!program) continue;
    num_events = std::max(num_events, program->program.num_events);
    std::int64_t commands = 0;
    for (const Instruction& instruction : program->program.instructions)
      commands += 2 + static_cast<std::int64_t>(instruction.waits.size());
    num_commands = std::max(num_commands, commands);
  }
  device_.reserve(num_events, num_commands);
  const int threads = plan_.request.threads;
  const Kernel warm_up = [threads](const KernelArgs&) { warm_up_threads(threads); };
  device_.launch(StreamId::compute, warm_up, {});
  device_.synchronize();
}

Session::~Session() { give_back(); }

void Session::give_back() {
  if (owns_arena_) device_.release(arena_);
  if (host_ != nullptr) device_.release_host(host_);
}

char* Session::at(const PhysicalGraph& graph, ValueId value) const {
  return arena_ + plan_.persistent.offsets.at(graph.value(value).name);
}

void Session::bind_copy(const Instruction& instruction, BoundInstruction& bound) const {
  const bool goes_out = instruction.kind == Instruction::Kind::copy_out;
  const Operand& operand = (goes_out ? instruction.reads : instruction.writes)[0];
  bound.bytes = operand.bytes;
  if (instruction.tier == Tier::file)
    bound.file = {file_.get(), goes_out ? IoDirection::write : IoDirection::read,
                  instruction.host_offset, arena_ + operand.offset, operand.bytes};
  else
    bound.host = host_ + instruction.host_offset;
}

void Session::bind(ProgramId id) {
  const ProgramPlan& program = *plan_.at(id);
  BoundProgram& bound_program = programs_[static_cast<int>(id)];
  for (const Instruction& instruction : program.program.instructions) {
    BoundInstruction& bound = bound_program.emplace_back();
    bound.instruction = &instruction;
    for (const Operand& operand : instruction.reads) bound.reads.push_back(arena_ + operand.offset);
    for (const Operand& operand : instruction.writes)
      bound.writes.push_back(arena_ + operand.offset);
    bound.args = {bound.reads.data(), bound.writes.data(), arena_ + instruction.workspace_offset,
                  state_};
    if (instruction.kind != Instruction::Kind::kernel) {
      bind_copy(instruction, bound);
      continue;
    }
    bound.kernel = make_kernel(
        program.graph, solver_, program.physical,
        operation_of(program.physical, {instruction.source, instruction.operation, {}}));
  }
}

void Session::collect_tensors() {
  const PhysicalGraph& graph = plan_.main().physical;
  const auto add = [&](std::vector<PersistentTensor>& list, ValueId value) {
    list.push_back({graph.value(value).name, graph.value(value).spec.shape, value});
  };
  for (const Parameter& parameter : graph.parameters) {
    add(parameters_, parameter.value);
    for (const ValueId state : parameter.states) add(solver_states_, state);
  }
  for (const Buffer& buffer : graph.buffers) add(buffers_, buffer.value);
}

void Session::read(const PersistentTensor& tensor, std::span<float> to) const {
  const PhysicalGraph& graph = plan_.main().physical;
  LAYUP_ASSERT(static_cast<std::int64_t>(to.size()) == tensor.count());
  to_plain(graph.value(tensor.value).layout, tensor.shape, at(graph, tensor.value), to.data());
}

std::vector<float> Session::read(const PersistentTensor& tensor) const {
  std::vector<float> values(static_cast<std::size_t>(tensor.count()));
  read(tensor, values);
  return values;
}

void Session::write(const PersistentTensor& tensor, std::span<const float> from) {
  const PhysicalGraph& graph = plan_.main().physical;
  LAYUP_ASSERT(static_cast<std::int64_t>(from.size()) == tensor.count());
  from_plain(graph.value(tensor.value).layout, tensor.shape, from.data(), at(graph, tensor.value));
}

void Session::initialize(std::uint64_t seed) {
  const PhysicalGraph& graph = plan_.main().physical;
  std::vector<float> values;
  const auto sized = [&](const PersistentTensor& tensor) -> std::span<float> {
    values.assign(static_cast<std::size_t>(tensor.count()), 0.0F);
    return values;
  };
  for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
    layup::initialize(graph.parameters[i].init, seed, graph.parameters[i].name,
                      sized(parameters_[i]));
    write(parameters_[i], values);
  }
  for (std::size_t i = 0; i < graph.buffers.size(); ++i) {
    std::ranges::fill(sized(buffers_[i]), graph.buffers[i].initial);
    write(buffers_[i], values);
  }
  for (const PersistentTensor& state : solver_states_) write(state, sized(state));
}

float* Session::staged_images(int slot) const {
  const PhysicalGraph& graph = plan_.main().physical;
  const std::int64_t per_slot =
      num_elements(graph.value(graph.staged_images).spec.shape) / kStagingSlots;
  return reinterpret_cast<float*>(at(graph, graph.staged_images)) + slot * per_slot;
}

std::int32_t* Session::staged_labels(int slot) const {
  const PhysicalGraph& graph = plan_.main().physical;
  return reinterpret_cast<std::int32_t*>(at(graph, graph.staged_labels)) +
         slot * graph.staging_batch;
}

StepResult Session::run(ProgramId id, const StepState& state, std::span<TimeSpan> times) {
  const PhysicalGraph& graph = plan_.at(id)->physical;
  *state_ = state;
  state_->failed = 0;
  allocation_counter::start();
  try {
    execute(programs_[static_cast<int>(id)], device_, times);
  } catch (...) {
    allocation_counter::stop();
    throw;
  }
  const allocation_counter::Counts heap = allocation_counter::stop();
  heap_allocations_ += heap.allocations;
  heap_peak_bytes_ = std::max(heap_peak_bytes_, heap.bytes);
  StepResult result;
  for (const ValueId loss : graph.losses) result.loss += *reinterpret_cast<float*>(at(graph, loss));
  if (graph.correct)
    result.correct = std::llround(*reinterpret_cast<float*>(at(graph, *graph.correct)));
  result.failed = state_->failed;
  return result;
}

StepResult Session::train_step(const StepState& state, std::int64_t count,
                               std::span<TimeSpan> times) {
  StepResult total;
  StepState part_state = state;
  for (const StepPart& part : parts_of_step(plan_.request, count)) {
    const double weight = static_cast<double>(part.count) / static_cast<double>(count);
    part_state.loss_gradient = static_cast<float>(state.loss_gradient * weight);
    const std::size_t num_times =
        times.empty() ? 0 : plan_.at(part.program)->program.instructions.size();
    const StepResult result = run(part.program, part_state, times.first(num_times));
    times = times.subspan(num_times);
    total.loss += static_cast<float>(result.loss * weight);
    total.correct += result.correct;
    if (result.failed != 0) {
      total.failed = result.failed;
      total.failed_program = part.program;
      total.failed_state = part_state;
      return total;
    }
    part_state.first_row += static_cast<std::int32_t>(part.count);
    part_state.first_sample += part.count;
  }
  return total;
}

std::string Session::explain_failure(ProgramId id, StepState state, std::int32_t failed) {
  const ProgramPlan& program = *plan_.at(id);
  if (failed >= kFailedGradient)
    return "the gradient of " +
           program.physical.parameters.at(static_cast<std::size_t>(failed - kFailedGradient)).name;
  state.failed = 0;
  *state_ = state;
  const BoundInstruction* first =
      execute_checked(programs_[static_cast<int>(id)], device_, [&](const BoundInstruction& bound) {
        for (std::size_t i = 0; i < bound.writes.size(); ++i)
          if (!is_finite(program.physical.value(bound.instruction->writes[i].value),
                         bound.writes[i]))
            return false;
        return true;
      });
  if (first == nullptr) return "the loss";
  if (first->instruction->kind != Instruction::Kind::kernel) return "a copy";
  return operation_of(program.physical,
                      {first->instruction->source, first->instruction->operation, {}})
      .name;
}

std::string Session::find_not_finite() const {
  for (const auto* list : {&parameters_, &buffers_, &solver_states_})
    for (const PersistentTensor& tensor : *list) {
      const std::vector<float> values = read(tensor);
      if (!all_finite(values.data(), tensor.count(), plan_.request.threads)) return tensor.name;
    }
  return "";
}

std::string Session::weights_hash() const {
  std::uint64_t hash = kFnvOffset;
  for (const auto* list : {&parameters_, &buffers_})
    for (const PersistentTensor& tensor : *list) {
      hash = fnv1a(tensor.name, hash);
      const std::vector<float> values = read(tensor);
      hash = fnv1a({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)},
                   hash);
    }
  std::string text(16, '0');
  for (std::size_t i = 0; i < 16; ++i) text[i] = "0123456789abcdef"[(hash >> (60U - 4 * i)) & 15U];
  return text;
}

std::int64_t Session::measured_peak_bytes() const {
  return device_.counters().peak_bytes + heap_peak_bytes_;
}

std::int64_t Session::allocations_after_start() const {
  return device_.counters().num_allocations + device_.host_counters().num_allocations -
         allocations_at_start_ + heap_allocations_;
}

}  // namespace layup
