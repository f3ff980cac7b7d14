// SPDX-License-Identifier: Apache-2.0
#include "scheduler/measure_copies.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "engine/median.h"
#include "engine/parallel.h"

namespace layup {
namespace {

constexpr std::int64_t kCopyBytes = std::int64_t{16} << 20;
constexpr int kNumCopies = 4;  // that take turns: more bytes than caches hold
constexpr std::int64_t kFileBytes = std::int64_t{256} << 20;
constexpr std::int64_t kFileCopyBytes = std::int64_t{8} << 20;
constexpr std::int64_t kWorkBytes = std::int64_t{64} << 20;
constexpr std::int64_t kLineBytes = 64;  // of caches
constexpr double kRoundMs = 60;          // of computation, about
constexpr int kRounds = 5;

// Work of all threads, with as much traffic for each FLOP as a step of a deep network has
// (ResNet-50: about 20 FLOP per byte), so that copies take from it what they take there.
class Work {
 public:
  Work(Device& device, int threads)
      : device_(device), memory_(device, kWorkBytes), kernel_([this, threads](const KernelArgs&) {
          parallel_for(threads, threads, [this, threads](std::int64_t part, std::int64_t) {
            constexpr std::int64_t kLines = kWorkBytes / kLineBytes;
            const std::int64_t first = kLines * part / threads;
            const std::int64_t end = kLines * (part + 1) / threads;
            std::array<float, 128>& sums = sums_[static_cast<std::size_t>(part) % sums_.size()];
            std::int64_t line = first;
            for (std::int64_t i = 0; i < lines_; ++i) {
              for (int round = 0; round < 5; ++round)
                for (float& sum : sums) sum = sum * 0.999F + 0.5F;
              *reinterpret_cast<float*>(memory_.at(line * kLineBytes)) += sums[0];
              if (++line == end) line = first;
            }
          });
        }) {}
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  void launch(TimeSpan* span) const { device_.launch(StreamId::compute, kernel_, {}, span); }

  // Makes one run take about so long.
  void settle(double ms) {
    double factor = 0;  // threads that are not awake yet spoil the first attempts
    for (int attempt = 0; attempt < 20 && !(factor > 0.8 && factor < 1.25); ++attempt) {
      std::array<TimeSpan, 9> spans;
      for (TimeSpan& span : spans) launch(&span);
      device_.synchronize();
      std::vector<double> times;
      for (const TimeSpan& span : spans) times.push_back(length_ms(span));
      factor = ms / std::max(median(times), 1e-4);
      lines_ = std::max<std::int64_t>(
          1, std::llround(static_cast<double>(lines_) * std::clamp(factor, 0.1, 10.0)));
    }
  }

 private:
  Device& device_;
  DeviceBlock memory_;
  std::int64_t lines_ = 2'000;  // that each thread reads and writes in one run
  std::array<std::array<float, 128>, 64> sums_{};
  Kernel kernel_;
};

struct BesideWork {
  double bytes_per_s = 0;
  double interference = 0;
};

// `issue` puts one copy of `bytes` on copy_out. As in a step, each copy begins when a kernel is
// done and runs beside the next ones; what it takes from them is how much later the last one ends.
BesideWork measure_beside_work(Device& device, int threads, std::int64_t bytes,
                               const std::function<void(TimeSpan*)>& issue) {
  std::vector<double> alone;
  for (int i = 0; i < 2 * kNumCopies; ++i) {
    TimeSpan span;
    issue(&span);
    device.synchronize();
    alone.push_back(length_ms(span));
  }
  Work work(device, threads);
  const double work_ms = std::max(2 * median(alone), 0.5);
  work.settle(work_ms);
  const auto count = static_cast<std::size_t>(std::clamp(kRoundMs / work_ms, 4.0, 200.0));
  std::vector<TimeSpan> works(count);
  std::vector<TimeSpan> copies(count);
  device.reserve(1, static_cast<std::int64_t>(2 * count));
  const auto run = [&](bool with_copies) {
    for (std::size_t i = 0; i < count; ++i) {
      work.launch(&works[i]);
      if (!with_copies) continue;
      device.record(StreamId::compute, EventId{0});
      device.wait(StreamId::copy_out, EventId{0});
      issue(&copies[i]);
    }
    device.synchronize();
    return length_ms({works.front().start_ns, works.back().end_ns});
  };
  std::vector<double> rates;
  std::vector<double> interferences;
  for (int round = 0; round < kRounds; ++round) {
    const double alone_ms = run(false);
    const double beside_ms = run(true);
    double copies_ms = 0;
    for (const TimeSpan& span : copies) copies_ms += length_ms(span);
    rates.push_back(static_cast<double>(bytes) * static_cast<double>(count) / copies_ms * 1e3);
    interferences.push_back((beside_ms - alone_ms) / copies_ms);
  }
  return {median(rates), std::clamp(median(interferences), 0.0, kMostInterference)};
}

// Of one copy that is too small to take time.
double latency_ms(Device& device, const std::function<void(TimeSpan*)>& issue) {
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    TimeSpan span;
    issue(&span);
    device.synchronize();
    times.push_back(length_ms(span));
  }
  return median(times);
}

}  // namespace

void measure_copies(Device& device, Calibration& calibration) {
  const DeviceBlock from(device, kNumCopies * kCopyBytes);
  const DeviceBlock to(device, kNumCopies * kCopyBytes);
  std::int64_t next = 0;
  const auto copy = [&](std::int64_t bytes) {
    return [&, bytes](TimeSpan* span) {
      device.copy(StreamId::copy_out, to.at(next), from.at(next), bytes, span);
      next = (next + kCopyBytes) % (kNumCopies * kCopyBytes);
    };
  };
  calibration.latency_us = latency_ms(device, copy(kAlignment)) * 1e3;
  const BesideWork rate =
      measure_beside_work(device, calibration.threads, kCopyBytes, copy(kCopyBytes));
  calibration.copy_bytes_per_s = rate.bytes_per_s;
  calibration.interference = rate.interference;
}

FileRates measure_file(Device& device, int threads, const std::filesystem::path& folder) {
  const auto file = device.open_file(folder, kFileBytes);
  const DeviceBlock memory(device, kFileCopyBytes);
  std::int64_t next = 0;
  const auto copy = [&](IoDirection direction, std::int64_t bytes) {
    return [&, direction, bytes](TimeSpan* span) {
      device.copy_file(StreamId::copy_out, {file.get(), direction, next, memory.at(0), bytes},
                       span);
      next = (next + kFileCopyBytes) % kFileBytes;
    };
  };
  const auto write_whole = copy(IoDirection::write, kFileCopyBytes);
  for (std::int64_t i = 0; i < kFileBytes / kFileCopyBytes; ++i) write_whole(nullptr);
  device.synchronize();
  const BesideWork out = measure_beside_work(device, threads, kFileCopyBytes, write_whole);
  const BesideWork back =
      measure_beside_work(device, threads, kFileCopyBytes, copy(IoDirection::read, kFileCopyBytes));
  FileRates rates;
  rates.latency_us = (latency_ms(device, copy(IoDirection::write, kFileAlignment)) +
                      latency_ms(device, copy(IoDirection::read, kFileAlignment))) /
                     2 * 1e3;
  rates.write_bytes_per_s = out.bytes_per_s;
  rates.read_bytes_per_s = back.bytes_per_s;
  rates.interference = (out.interference + back.interference) / 2;
  return rates;
}

}  // namespace layup
