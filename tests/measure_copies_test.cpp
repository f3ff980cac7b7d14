// SPDX-License-Identifier: Apache-2.0
// What is measured of copies, on a device whose clock is made up: kernels take as long as it says,
// and longer while a copy runs.
#include "scheduler/measure_copies.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "engine/graph/physical_graph.h"

namespace layup {
namespace {

class ClockedDevice : public Device {
 public:
  double kernel_ms = 4;
  double copy_bytes_per_s = 8e9;
  double latency_ms = 0.02;
  double interference = 0.25;  // while a copy runs, kernels lose this part of their speed

  DeviceKind kind() const override { return DeviceKind::reference; }
  std::string description() const override { return "clocked"; }
  void* allocate(std::int64_t bytes) override { return memory_.allocate(bytes, "the clock"); }
  void touch(void*, std::int64_t) override {}
  void release(void* memory) override { memory_.release(memory); }
  MemoryCounters counters() const override { return memory_.counters(); }
  void reserve(std::int64_t num_events, std::int64_t num_commands) override {
    CHECK(num_used_ == 0);
    num_events_ = num_events;
    num_commands_ = num_commands;
  }
  void launch(StreamId stream, const Kernel&, const KernelArgs&, TimeSpan* time) override {
    CHECK(stream == StreamId::compute);
    count();
    const double start = compute_ms_;
    double left = kernel_ms;
    double now = start;
    if (copy_ms_ > now) {
      const double beside = std::min(copy_ms_ - now, left / (1 - interference));
      now += beside;
      left -= beside * (1 - interference);
    }
    compute_ms_ = now + left;
    set(time, start, compute_ms_);
  }
  void copy(StreamId stream, void*, const void*, std::int64_t bytes, TimeSpan* time) override {
    CHECK(stream == StreamId::copy_out);
    count();
    const double start = std::max(copy_ms_, ready_ms_);
    copy_ms_ = start + latency_ms + static_cast<double>(bytes) / copy_bytes_per_s * 1e3;
    set(time, start, copy_ms_);
  }
  void record(StreamId, EventId event) override {
    count();
    CHECK(static_cast<std::int64_t>(event) < num_events_);
    recorded_ms_ = compute_ms_;
  }
  void wait(StreamId, EventId) override {
    count();
    ready_ms_ = recorded_ms_;
  }
  void synchronize() override {
    compute_ms_ = copy_ms_ = ready_ms_ = std::max(compute_ms_, copy_ms_) + 1;
    num_used_ = 0;
  }

 private:
  // What was reserved is enough.
  void count() { CHECK(++num_used_ <= std::max<std::int64_t>(num_commands_, 16)); }
  static void set(TimeSpan* time, double start_ms, double end_ms) {
    if (time != nullptr)
      *time = {static_cast<std::int64_t>(start_ms * 1e6), static_cast<std::int64_t>(end_ms * 1e6)};
  }

  CountedMemory memory_;
  double compute_ms_ = 0;
  double copy_ms_ = 0;
  double ready_ms_ = 0;  // when what copies wait for is there
  double recorded_ms_ = 0;
  std::int64_t num_used_ = 0;
  std::int64_t num_events_ = 0;
  std::int64_t num_commands_ = 0;
};

TEST_CASE("measured copies: rate, latency and what they take from kernels") {
  for (const double interference : {0.0, 0.25, 0.6})
    for (const double bytes_per_s : {1e9, 8e9}) {
      CAPTURE(interference);
      CAPTURE(bytes_per_s);
      ClockedDevice device;
      device.interference = interference;
      device.copy_bytes_per_s = bytes_per_s;
      device.kernel_ms = 60;  // longer than any copy, so that each runs beside one kernel
      Calibration calibration;
      measure_copies(device, calibration);
      const double whole_ms = device.latency_ms + (16 << 20) / bytes_per_s * 1e3;
      CHECK(calibration.copy_bytes_per_s == doctest::Approx((16 << 20) / whole_ms * 1e3));
      CHECK(calibration.latency_us == doctest::Approx(20).epsilon(0.01));
      CHECK(calibration.interference == doctest::Approx(interference).epsilon(0.01));
      CHECK(device.counters().live_bytes == 0);
    }
}

}  // namespace
}  // namespace layup
