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
constexpr std::int64_t kBlockBytes = std::int64_t{16} << 10;
constexpr std::int64_t kWorkBlocks = 256;       // of each thread, at most
constexpr std::int64_t kMostWorkBlocks = 4096;  // of all
constexpr double kRoundMs = 60;                 // of computation, about
constexpr int kRounds = 5;

// Work of all threads on memory that caches hold, as a convolution that is blocked well: a copy
// takes a processor from it for a while, and what it had in the caches.
class Work {
 public:
  Work(Device& device, int threads)
      : device_(device),
        blocks_of_thread_(std::clamp<std::int64_t>(kMostWorkBlocks / threads, 1, kWorkBlocks)),
        memory_(device, kBlockBytes * blocks_of_thread_ * threads),
        kernel_([this, threads](const KernelArgs&) {
          parallel_for(threads, threads, [this](std::int64_t part, std::int64_t) {
            char* mine = memory_.at(kBlockBytes * blocks_of_thread_ * part);
            for (std::int64_t i = 0; i < num_blocks_; ++i) {
              auto* block = reinterpret_cast<float*>(mine + kBlockBytes * (i % blocks_of_thread_));
              for (int round = 0; round < 8; ++round)
                for (std::int64_t j = 0; j < kBlockBytes / 4; ++j)
                  block[j] = block[j] * 0.999F + 0.5F;
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
      num_blocks_ = std::max<std::int64_t>(
          1, std::llround(static_cast<double>(num_blocks_) * std::clamp(factor, 0.1, 10.0)));
    }
  }

 private:
  Device& device_;
  std::int64_t blocks_of_thread_;
  DeviceBlock memory_;
  std::int64_t num_blocks_ = 100;  // that each thread works on in one run
  Kernel kernel_;
};

struct BesideWork {
  double bytes_per_s = 0;
  double interference = 0;
};

// `issue` puts one copy of `bytes` on copy_out. As in a step, each copy begins when a kernel is
// done and runs beside the next one; what it takes from them is how much later the last one ends.
BesideWork measure_beside_work(Device& device, int threads, std::int64_t bytes,
                               const std::function<void(TimeSpan*)>& issue) {
  std::vector<double> quiet_ms;
  for (int i = 0; i < 2 * kNumCopies; ++i) {
    TimeSpan span;
    issue(&span);
    device.synchronize();
    quiet_ms.push_back(length_ms(span));
  }
  Work work(device, threads);
  const double work_ms = std::max(2 * median(quiet_ms), 0.5);
  work.settle(work_ms);
  const auto count = static_cast<std::size_t>(std::clamp(kRoundMs / work_ms, 6.0, 200.0));
  std::vector<TimeSpan> works(count);
  std::vector<TimeSpan> copies(count - 1);
  device.reserve(1, static_cast<std::int64_t>(4 * count));
  const auto run = [&](bool with_copies) {
    for (std::size_t i = 0; i < count; ++i) {
      work.launch(&works[i]);
      if (!with_copies || i + 1 == count) continue;  // nothing runs beside the last one's
      device.record(StreamId::compute, EventId{0});
      device.wait(StreamId::copy_out, EventId{0});
      issue(&copies[i]);
    }
    device.synchronize();
    return length_ms({works.front().start_ns, works.back().end_ns});
  };
  std::vector<double> alone_ms;
  std::vector<double> beside_ms;
  std::vector<double> copies_ms;
  for (int round = 0; round < kRounds; ++round) {
    alone_ms.push_back(run(false));
    beside_ms.push_back(run(true));
    double sum = 0;
    for (const TimeSpan& span : copies) sum += length_ms(span);
    copies_ms.push_back(sum);
  }
  // Whatever else the machine does makes work slower, never faster.
  const double late_ms = *std::min_element(beside_ms.begin(), beside_ms.end()) -
                         *std::min_element(alone_ms.begin(), alone_ms.end());
  const double copied_ms = median(copies_ms);
  return {static_cast<double>(bytes) * static_cast<double>(copies.size()) / copied_ms * 1e3,
          std::clamp(late_ms / copied_ms, 0.0, kMostInterference)};
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
  device.reserve(0, kFileBytes / kFileCopyBytes);
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
