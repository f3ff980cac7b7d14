// SPDX-License-Identifier: Apache-2.0
#include "scheduler/calibrate.h"

#include <algorithm>
#include <vector>

#include "engine/bf16.h"
#include "engine/median.h"
#include "scheduler/measure_copies.h"

namespace layup {
namespace {

constexpr double kEnoughMs = 20;  // per operation, once the least number of runs is made
constexpr int kFewestRuns = 3;
constexpr int kMostRuns = 25;

// Runs follow each other as the operations of a step do: a stream that falls idle between two costs
// its threads a wake-up, and now and then a wait for a processor.
double median_ms(Device& device, const Kernel& kernel, const KernelArgs& args) {
  const auto run = [&](int count) {
    std::vector<TimeSpan> spans(static_cast<std::size_t>(count));
    for (TimeSpan& span : spans) device.launch(StreamId::compute, kernel, args, &span);
    device.synchronize();
    return spans;
  };
  run(1);  // cold
  const double enough = kEnoughMs / std::max(length_ms(run(1)[0]), 1e-4);
  std::vector<double> times;
  for (const TimeSpan& span :
       run(static_cast<int>(std::clamp(enough, 1.0 * kFewestRuns, 1.0 * kMostRuns))))
    times.push_back(length_ms(span));
  return median(times);
}

double measure(const Graph& graph, const PhysicalGraph& physical, const Solver* solver,
               const PhysicalOperation& op, Device& device) {
  std::int64_t bytes = kAlignment + op.workspace_bytes;
  for (const auto* operands : {&op.reads, &op.writes})
    for (const ValueId value : *operands) bytes += physical.value(value).bytes;
  const DeviceBlock scratch(device, bytes);
  auto* state = new (scratch.at(0)) StepState;
  std::int64_t offset = kAlignment + op.workspace_bytes;
  const auto place = [&](ValueId id) {
    const PhysicalValue& value = physical.value(id);
    char* data = scratch.at(offset);
    offset += value.bytes;
    if (value.spec.dtype == DType::f32) {  // neither zero nor denormal, of both signs
      const bool is_bf16 = value.layout.element == Element::bf16;
      for (std::int64_t i = 0; i < num_elements(value.spec.shape); ++i) {
        const float number = static_cast<float>(i % 13 - 5) * 0.125F;
        if (is_bf16)
          reinterpret_cast<Bf16*>(data)[i] = to_bf16(number);
        else
          reinterpret_cast<float*>(data)[i] = number;
      }
    }
    return data;
  };
  std::vector<const void*> reads;
  std::vector<void*> writes;
  for (const ValueId value : op.reads) reads.push_back(place(value));
  for (const ValueId value : op.writes) writes.push_back(place(value));
  const Kernel kernel = make_kernel(graph, solver, physical, op);
  const KernelArgs args{reads.data(), writes.data(), scratch.at(kAlignment), state};
  return median_ms(device, kernel, args);
}

}  // namespace

int calibrate(const Graph& graph, const PhysicalGraph& physical, const Solver* solver,
              Device& device, Calibration& calibration, const StopRequest& stops,
              bool with_copies) {
  if (with_copies && calibration.copy_bytes_per_s == 0) measure_copies(device, calibration);
  int measured = 0;
  for (const PhysicalOperation* op : find_unmeasured(physical, calibration)) {
    if (stops && stops()) break;
    calibration.operation_ms[op->cost_key] = measure(graph, physical, solver, *op, device);
    ++measured;
  }
  return measured;
}

}  // namespace layup
