// SPDX-License-Identifier: Apache-2.0
// A device for tests: writes down every call as a plain value and, unless told otherwise, runs
// nothing. With `runs_inline` kernels and copies run within the call that issues them: an order
// that every valid program allows, so that a session works on it in a single thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/device.h"

namespace layup {

// Where a pointer points: into the n-th block that the device has given out, or elsewhere.
struct RecordedAddress {
  std::int64_t block = -1;  // -1: memory that is not the device's
  std::int64_t offset = 0;

  bool operator==(const RecordedAddress&) const = default;
};

struct RecordedCall {
  enum class Kind : std::uint8_t { launch, copy, copy_file, record, wait, synchronize };
  Kind kind = Kind::launch;
  StreamId stream = StreamId::compute;  // but for synchronize
  EventId event{};                      // of record and wait
  std::int64_t bytes = 0;               // of a copy, with the two ends
  RecordedAddress to;
  RecordedAddress from;
  // Of a copy to or from a file; the other end is in `to` or `from`.
  IoDirection direction = IoDirection::write;
  std::int64_t file_offset = 0;

  bool operator==(const RecordedCall&) const = default;
};

std::string to_string(const RecordedCall& call);  // "compute: wait 3"

class RecordingDevice : public Device {
 public:
  explicit RecordingDevice(bool runs_inline = false) : runs_inline_(runs_inline) {}
  RecordingDevice(const RecordingDevice&) = delete;
  RecordingDevice& operator=(const RecordingDevice&) = delete;
  ~RecordingDevice() override;

  // Those since construction or the last clear_calls().
  const std::vector<RecordedCall>& calls() const { return calls_; }
  void clear_calls() { calls_.clear(); }
  // One line per call.
  std::string calls_text() const;

  // The allocation after `successes` more of them throws DeviceError, and so do all that follow.
  void fail_allocations_after(std::int64_t successes) { allocations_left_ = successes; }
  // Called at every launch, before the kernel runs, with its arguments.
  void on_launch(std::function<void(const KernelArgs&)> observer) {
    observer_ = std::move(observer);
  }

  DeviceKind kind() const override { return DeviceKind::reference; }
  std::string description() const override { return "recording"; }
  void* allocate(std::int64_t bytes) override;
  void touch(void* memory, std::int64_t bytes) override;
  void release(void* memory) override;
  // What `opener` gives; without one there is no file tier.
  void open_files_with(std::function<std::unique_ptr<FileTier>(std::int64_t bytes)> opener) {
    opener_ = std::move(opener);
  }
  std::unique_ptr<FileTier> open_file(const std::filesystem::path& folder,
                                      std::int64_t bytes) override {
    return opener_ ? opener_(bytes) : Device::open_file(folder, bytes);
  }
  MemoryCounters counters() const override { return counters_; }
  // Also what is checked: more events, or more calls between two synchronisations, are a
  // programmer's mistake (std::logic_error).
  void reserve(std::int64_t num_events, std::int64_t num_commands) override;
  // The n-th timed call since construction took from 1000 n ns to 1000 n + 500.
  void launch(StreamId stream, const Kernel& kernel, const KernelArgs& args,
              TimeSpan* time = nullptr) override;
  void copy(StreamId stream, void* to, const void* from, std::int64_t bytes,
            TimeSpan* time = nullptr) override;
  void copy_file(StreamId stream, const FileCopy& copy, TimeSpan* time = nullptr) override;
  void record(StreamId stream, EventId event) override;
  void wait(StreamId stream, EventId event) override;
  void synchronize() override;

 private:
  struct BlockOfMemory {
    char* memory = nullptr;
    std::int64_t bytes = 0;
    std::int64_t number = 0;
  };

  void note(const RecordedCall& call);
  void note_time(TimeSpan* time);
  RecordedAddress address(const void* pointer) const;
  // Runs what a call asks for; an exception waits for synchronize and stops all that follows.
  void run(const std::function<void()>& work);

  bool runs_inline_;
  std::vector<RecordedCall> calls_;
  std::vector<BlockOfMemory> blocks_;
  std::int64_t num_blocks_ = 0;
  std::optional<std::int64_t> allocations_left_;
  std::function<void(const KernelArgs&)> observer_;
  std::function<std::unique_ptr<FileTier>(std::int64_t bytes)> opener_;
  MemoryCounters counters_;
  std::int64_t num_events_ = 0;
  std::int64_t num_commands_ = 16;
  std::int64_t commands_in_flight_ = 0;
  std::int64_t num_timed_ = 0;
  std::exception_ptr failure_;
};

}  // namespace layup
