// SPDX-License-Identifier: Apache-2.0
#include "scheduler/calibrate.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include "engine/bf16.h"
#include "engine/median.h"
#include "engine/parallel.h"
#include "scheduler/measure_copies.h"

namespace layup {
namespace {

constexpr double kBurstMs = 8;  // of runs of one operation, once the least number is made
constexpr int kNumBursts = 3;
constexpr int kFewestRuns = 2;
constexpr int kMostRuns = 5;
constexpr std::int64_t kSweepBytes = std::int64_t{32} << 20;  // about what caches hold

// Reads so much other memory that caches forget what an operation leaves there: in a step, most of
// what it reads was written long before.
class Sweep {
 public:
  Sweep(Device& device, int threads)
      : memory_(device, kSweepBytes), kernel_([this, threads](const KernelArgs&) {
          constexpr std::int64_t kNumbers = kSweepBytes / 8;
          parallel_for(threads, kNumbers, [this](std::int64_t begin, std::int64_t end) {
            const auto* numbers = reinterpret_cast<const std::int64_t*>(memory_.at(0));
            std::int64_t sum = 0;
            for (std::int64_t i = begin; i < end; ++i) sum += numbers[i];
            sum_ += sum;
          });
        }) {}
  Sweep(const Sweep&) = delete;
  Sweep& operator=(const Sweep&) = delete;

  const Kernel& kernel() const { return kernel_; }

 private:
  DeviceBlock memory_;
  std::atomic<std::int64_t> sum_ = 0;  // so that the sum is made
  Kernel kernel_;
};

// Runs follow each other without a pause, as the operations of a step do: a stream that falls idle
// costs its threads a wake-up. Threads that have just woken may share a processor for a while, and
// then all runs of a burst are slow: of the bursts' medians the least counts.
double least_median_ms(Device& device, const Sweep& sweep, const Kernel& kernel,
                       const KernelArgs& args) {
  const auto run = [&](int count) {
    std::vector<TimeSpan> spans(static_cast<std::size_t>(count));
    for (TimeSpan& span : spans) {
      device.launch(StreamId::compute, sweep.kernel(), {});
      device.launch(StreamId::compute, kernel, args, &span);
    }
    device.synchronize();
    std::vector<double> times;
    for (const TimeSpan& span : spans) times.push_back(length_ms(span));
    return median(times);
  };
  double least_ms = run(2);  // the larger: the first is cold
  for (int burst = 0; burst < kNumBursts; ++burst) {
    const double count =
        std::clamp(kBurstMs / std::max(least_ms, 1e-4), 1.0 * kFewestRuns, 1.0 * kMostRuns);
    least_ms = std::min(least_ms, run(static_cast<int>(count)));
  }
  return least_ms;
}

double measure(const Graph& graph, const PhysicalGraph& physical, const Solver* solver,
               const PhysicalOperation& op, Device& device, const Sweep& sweep) {
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
  return least_median_ms(device, sweep, kernel, args);
}

}  // namespace

int calibrate(const Graph& graph, const PhysicalGraph& physical, const Solver* solver,
              Device& device, Calibration& calibration, const StopRequest& stops,
              bool with_copies) {
  if (with_copies && calibration.copy_bytes_per_s == 0) measure_copies(device, calibration);
  int measured = 0;
  std::optional<Sweep> sweep;
  for (const PhysicalOperation* op : find_unmeasured(physical, calibration)) {
    if (stops && stops()) break;
    if (!sweep) sweep.emplace(device, calibration.threads);
    calibration.operation_ms[op->cost_key] = measure(graph, physical, solver, *op, device, *sweep);
    ++measured;
  }
  return measured;
}

}  // namespace layup
