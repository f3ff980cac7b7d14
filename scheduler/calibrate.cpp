// SPDX-License-Identifier: Apache-2.0
#include "scheduler/calibrate.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "engine/bf16.h"

namespace layup {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kEnoughMs = 20;  // per operation, once the least number of runs is made
constexpr int kFewestRuns = 3;
constexpr int kMostRuns = 25;
constexpr std::int64_t kCopyBytes = std::int64_t{64} << 20;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

template <typename Run>
double median_ms(const Run& run) {
  run();  // cold
  std::vector<double> times;
  double total = 0;
  while (static_cast<int>(times.size()) < kFewestRuns ||
         (total < kEnoughMs && static_cast<int>(times.size()) < kMostRuns)) {
    const Clock::time_point start = Clock::now();
    run();
    times.push_back(ms_since(start));
    total += times.back();
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

// A block of the device that is given back.
class Scratch {
 public:
  Scratch(Device& device, std::int64_t bytes)
      : device_(device), memory_(static_cast<char*>(device.allocate(bytes))) {
    device.touch(memory_, bytes);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { device_.release(memory_); }
  char* at(std::int64_t offset) const { return memory_ + offset; }

 private:
  Device& device_;
  char* memory_;
};

double measure(const Graph& graph, const PhysicalGraph& physical, const Solver* solver,
               const PhysicalOperation& op, Device& device) {
  std::int64_t bytes = kAlignment + op.workspace_bytes;
  for (const auto* operands : {&op.reads, &op.writes})
    for (const ValueId value : *operands) bytes += physical.value(value).bytes;
  const Scratch scratch(device, bytes);
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
  return median_ms([&] {
    device.launch(StreamId::compute, kernel, args);
    device.synchronize();
  });
}

void measure_copies(Device& device, Calibration& calibration) {
  const Scratch from(device, kCopyBytes);
  const Scratch to(device, kCopyBytes);
  const auto copy_ms = [&](std::int64_t bytes) {
    return median_ms([&] {
      device.copy(StreamId::copy_out, to.at(0), from.at(0), bytes);
      device.synchronize();
    });
  };
  const double small_ms = copy_ms(kAlignment);
  const double large_ms = copy_ms(kCopyBytes);
  calibration.latency_us = small_ms * 1e3;
  calibration.copy_bytes_per_s =
      static_cast<double>(kCopyBytes) / (std::max(large_ms - small_ms, 1e-3) * 1e-3);
}

constexpr std::int64_t kFileBytes = std::int64_t{64} << 20;
constexpr std::int64_t kFileCopyBytes = std::int64_t{8} << 20;

}  // namespace

FileRates measure_file(Device& device, const std::filesystem::path& folder) {
  const auto file = device.open_file(folder, kFileBytes);
  const Scratch scratch(device, kFileCopyBytes);
  const auto copy = [&](IoDirection direction, std::int64_t offset, std::int64_t bytes) {
    device.copy_file(StreamId::copy_out, {file.get(), direction, offset, scratch.at(0), bytes});
    device.synchronize();
  };
  const auto whole_ms = [&](IoDirection direction) {
    return median_ms([&] {
      for (std::int64_t at = 0; at < kFileBytes; at += kFileCopyBytes)
        copy(direction, at, kFileCopyBytes);
    });
  };
  const double small_ms = median_ms([&] {
    copy(IoDirection::write, 0, kFileAlignment);
    copy(IoDirection::read, 0, kFileAlignment);
  });
  const auto rate = [&](double ms) {
    const double latencies = small_ms / 2 * static_cast<double>(kFileBytes / kFileCopyBytes);
    return static_cast<double>(kFileBytes) / (std::max(ms - latencies, ms / 2) * 1e-3);
  };
  FileRates rates;
  rates.latency_us = small_ms / 2 * 1e3;
  rates.write_bytes_per_s = rate(whole_ms(IoDirection::write));
  rates.read_bytes_per_s = rate(whole_ms(IoDirection::read));
  return rates;
}

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
