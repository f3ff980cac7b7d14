// SPDX-License-Identifier: Apache-2.0
#include "apps/step_timing.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "apps/evaluation.h"
#include "apps/text_table.h"
#include "engine/error.h"
#include "engine/median.h"

namespace layup {
namespace {

// A small rate: the loss of an untrained network stays finite on one batch again and again.
constexpr float kLearningRate = 1e-4F;

OperationTime describe(const ProgramPlan& program, const Instruction& instruction) {
  const PhysicalOperation& op =
      operation_of(program.physical, {instruction.source, instruction.operation, {}});
  OperationTime time;
  time.name = op.name;
  time.kernel = op.kernel;
  time.flops = op.flops;
  time.bytes = op.bytes_moved;
  const bool is_layer = op.kind == OpKind::layer;
  time.layer = is_layer ? program.graph.node(op.node).name : "";
  time.type = is_layer ? program.graph.node(op.node).type : to_string(op.kind);
  time.pass = instruction.source == ActionKind::replay ? "recompute"
              : is_layer                               ? to_string(op.pass)
                                                       : "-";
  return time;
}

std::vector<std::string> cells(const OperationTime& time, double step_ms, std::string name) {
  const double seconds = std::max(time.ms, 1e-6) * 1e-3;
  return {std::move(name),
          time.type,
          time.pass,
          format_fixed(time.ms, 3),
          format_fixed(100 * time.ms / step_ms, 1),
          time.flops > 0 ? format_fixed(time.flops / seconds * 1e-9, 1) : "-",
          format_fixed(time.bytes / 1048576, 1),
          format_fixed(time.bytes / seconds * 1e-9, 1),
          time.kernel};
}

}  // namespace

double StepTiming::median_ms() const { return median(step_ms); }

void stage_first_batch(const RunConfig& config, Session& session) {
  LoaderOptions options;
  options.batch = session.plan().request.batch;
  options.seed = config.train.seed;
  options.data = config.data_options;
  BatchLoader loader(*config.data.train, options, staging_slots(session));
  loader.start(0, 0);
  loader.next();
  loader.stop();
}

StepTiming time_steps(const RunConfig& config, Session& session, int rounds) {
  using Clock = std::chrono::steady_clock;
  const std::int64_t batch = session.plan().request.batch;
  StepTiming timing;
  std::vector<bool> is_kernel;
  for (const StepPart& part : parts_of_step(session.plan().request, batch)) {
    const ProgramPlan& program = *session.plan().at(part.program);
    for (const Instruction& instruction : program.program.instructions) {
      is_kernel.push_back(instruction.kind == Instruction::Kind::kernel);
      if (is_kernel.back()) timing.operations.push_back(describe(program, instruction));
    }
  }
  std::vector<TimeSpan> spans(is_kernel.size());
  std::vector<std::vector<double>> times(timing.operations.size());
  std::vector<double> stalls;
  for (int round = 0; round <= rounds; ++round) {
    StepState state;
    state.step = round;
    state.seed = config.train.seed;
    state.learning_rate = kLearningRate;
    const Clock::time_point start = Clock::now();
    const StepResult result = session.train_step(state, batch, spans);
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    if (result.failed != 0)
      throw DivergedError("the loss is not finite on the batch that is timed");
    if (round == 0) continue;
    timing.step_ms.push_back(ms);
    double working = 0;
    std::size_t next = 0;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      if (!is_kernel[i]) continue;
      times[next].push_back(static_cast<double>(spans[i].end_ns - spans[i].start_ns) * 1e-6);
      working += times[next++].back();
    }
    stalls.push_back(ms - working);
  }
  for (std::size_t i = 0; i < times.size(); ++i) timing.operations[i].ms = median(times[i]);
  timing.stall_ms = median(stalls);
  return timing;
}

std::string timing_to_text(const StepTiming& timing) {
  const double step_ms = timing.median_ms();
  const std::vector<std::string> columns = {"type",    "pass", "ms",   "share %",
                                            "GFLOP/s", "MiB",  "GB/s", "kernel"};
  std::vector<std::string> header = {"operation"};
  header.insert(header.end(), columns.begin(), columns.end());
  TextTable operations(header);
  std::map<std::pair<std::string, std::string>, OperationTime> sums;
  for (const OperationTime& time : timing.operations) {
    operations.add(cells(time, step_ms, time.name));
    OperationTime& sum = sums[{time.type, time.pass}];
    sum.type = time.type;
    sum.pass = time.pass;
    sum.kernel = sum.ms == 0 || sum.kernel == time.kernel ? time.kernel : "several";
    sum.ms += time.ms;
    sum.flops += time.flops;
    sum.bytes += time.bytes;
  }
  std::vector<OperationTime> by_time;
  for (const auto& [key, sum] : sums) by_time.push_back(sum);
  std::stable_sort(by_time.begin(), by_time.end(),
                   [](const OperationTime& a, const OperationTime& b) { return a.ms > b.ms; });
  header.erase(header.begin());
  TextTable types(header);
  for (const OperationTime& sum : by_time) {
    std::vector<std::string> row = cells(sum, step_ms, "");
    row.erase(row.begin());
    types.add(std::move(row));
  }
  return operations.to_text() + "\n" + types.to_text();
}

Json timing_to_json(const StepTiming& timing) {
  Json list = Json::array();
  for (const OperationTime& time : timing.operations)
    list.push_back({{"name", time.name},
                    {"layer", time.layer.empty() ? Json(nullptr) : Json(time.layer)},
                    {"type", time.type},
                    {"pass", time.pass},
                    {"kernel", time.kernel},
                    {"ms", time.ms},
                    {"flops", time.flops},
                    {"bytes", time.bytes}});
  return list;
}

}  // namespace layup
