// SPDX-License-Identifier: Apache-2.0
// A device: memory that is counted, and streams that run kernels and copies in order.
//
// The model is CUDA's. Calls of the host put work at the end of a stream and return at once; a wait
// holds back what follows on its stream until the last record of that event, made before the wait
// was put, has been reached.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/device/counted_memory.h"
#include "engine/device/file_tier.h"
#include "engine/graph/layer.h"
#include "engine/ids.h"

namespace layup {

enum class StreamId : std::uint8_t { compute, copy_out, copy_in };
inline constexpr int kNumStreams = 3;
const char* to_string(StreamId stream);

// Pace of copies, to see how a plan behaves on another link ("12GB/s,10us").
struct LinkPace {
  double bytes_per_s = 0;
  double latency_us = 0;
};

// Throws ConfigError.
LinkPace parse_link_pace(std::string_view text);

// When a kernel or a copy ran, by a clock that all streams of a device share.
struct TimeSpan {
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

// Between memory of the device and the file tier, as FileTier::read or write.
struct FileCopy {
  FileTier* file = nullptr;
  IoDirection direction = IoDirection::write;  // seen from the file
  std::int64_t offset = 0;
  void* memory = nullptr;
  std::int64_t bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::string description() const = 0;

  // Memory of the device, kAlignment-aligned, contents undefined. Throws DeviceError naming the
  // bytes. Counted here, by what is asked of the system.
  virtual void* allocate(std::int64_t bytes) = 0;
  // Makes the system back the memory with pages now, so that no step pays for it.
  virtual void touch(void* memory, std::int64_t bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual MemoryCounters counters() const = 0;
  // Memory of the host tier (pinned where the device wants it), counted apart.
  virtual void* allocate_host(std::int64_t bytes) {
    return host_memory_.allocate(bytes, "the host tier");
  }
  virtual void release_host(void* memory) { host_memory_.release(memory); }
  virtual MemoryCounters host_counters() const { return host_memory_.counters(); }

  // The file tier. A device whose memory files cannot be read into throws DeviceError.
  virtual std::unique_ptr<FileTier> open_file(const std::filesystem::path& folder,
                                              std::int64_t bytes);

  // Room for programs of so many events and commands between two synchronisations.
  virtual void reserve(std::int64_t num_events, std::int64_t num_commands) = 0;
  // `kernel` and the arrays in `args` must live until the work is done. So must `time`, if given:
  // it holds when the work ran after the next synchronize(), unless the work was skipped.
  virtual void launch(StreamId stream, const Kernel& kernel, const KernelArgs& args,
                      TimeSpan* time = nullptr) = 0;
  virtual void copy(StreamId stream, void* to, const void* from, std::int64_t bytes,
                    TimeSpan* time = nullptr) = 0;
  // `copy.file` must live until the work is done. What goes wrong is an exception of the stream.
  virtual void copy_file(StreamId stream, const FileCopy& copy, TimeSpan* time = nullptr);
  virtual void record(StreamId stream, EventId event) = 0;
  virtual void wait(StreamId stream, EventId event) = 0;
  // Blocks until all streams are idle. Rethrows the first exception of a kernel; work behind it was
  // skipped.
  virtual void synchronize() = 0;

 private:
  CountedMemory host_memory_;
};

// The reference and cpu devices: streams are threads. With a pace, copies take at least so long;
// those of the file tier too, since they would have to cross the link.
std::unique_ptr<Device> make_cpu_device(DeviceKind kind, std::optional<LinkPace> pace = {});

}  // namespace layup
