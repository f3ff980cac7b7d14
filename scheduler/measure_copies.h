// SPDX-License-Identifier: Apache-2.0
// How fast copies are, and what they take from computation: measured beside kernels that keep all
// threads busy, as they are in a step.
#pragma once

#include "engine/device/device.h"
#include "memory/calibration.h"

namespace layup {

// Copies to the host tier. Fills copy_bytes_per_s, latency_us and interference. Takes 128 MiB, and
// up to 64 MiB for the work beside them.
void measure_copies(Device& device, Calibration& calibration);

// The file tier in `folder`: large copies to a file of 256 MiB that has been written before, as in
// all steps but the first, and back. Throws as Device::open_file.
FileRates measure_file(Device& device, int threads, const std::filesystem::path& folder);

// A block of the device that is given back, backed with pages.
class DeviceBlock {
 public:
  DeviceBlock(Device& device, std::int64_t bytes)
      : device_(device), memory_(static_cast<char*>(device.allocate(bytes))) {
    device.touch(memory_, bytes);
  }
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;
  ~DeviceBlock() { device_.release(memory_); }
  char* at(std::int64_t offset) const { return memory_ + offset; }

 private:
  Device& device_;
  char* memory_;
};

inline double length_ms(const TimeSpan& span) {
  return static_cast<double>(span.end_ns - span.start_ns) * 1e-6;
}

}  // namespace layup
