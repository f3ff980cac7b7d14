// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/device/device.h"
#include "engine/error.h"
#include "engine/process.h"
#include "engine/shape.h"

namespace layup {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

// An event counts its records; a wait is for one of them.
using EventCounter = std::atomic<std::uint64_t>;

struct Command {
  enum class Kind : std::uint8_t { kernel, copy, record, wait };
  Kind kind = Kind::kernel;
  const Kernel* kernel = nullptr;
  KernelArgs args;
  void* to = nullptr;
  const void* from = nullptr;
  std::int64_t bytes = 0;
  TimeSpan* time = nullptr;  // of a kernel or copy that is timed
  EventCounter* event = nullptr;
  std::uint64_t count = 0;
};

// One thread that runs commands in order. The queue is a ring of fixed size: nothing is allocated
// once it is reserved.
class Stream {
 public:
  explicit Stream(std::optional<LinkPace> pace) : pace_(pace), worker_([this] { run(); }) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    more_.notify_one();
    worker_.join();
  }

  // Only while idle.
  void reserve(std::int64_t num_commands) {
    const std::lock_guard lock(mutex_);
    if (ring_.size() < static_cast<std::size_t>(num_commands))
      ring_.resize(static_cast<std::size_t>(num_commands));
    put_ = taken_ = done_ = 0;
  }

  void put(const Command& command) {
    {
      std::unique_lock lock(mutex_);
      fewer_.wait(lock, [this] { return put_ - done_ < ring_.size(); });
      ring_[put_++ % ring_.size()] = command;
    }
    more_.notify_one();
  }

  // Blocks until idle and returns the first exception, if any.
  std::exception_ptr drain() {
    std::unique_lock lock(mutex_);
    fewer_.wait(lock, [this] { return done_ == put_; });
    return std::exchange(failure_, nullptr);
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      more_.wait(lock, [this] { return taken_ < put_ || stopping_; });
      if (taken_ == put_) return;
      const Command command = ring_[taken_++ % ring_.size()];
      const bool skip = failure_ != nullptr;
      lock.unlock();
      std::exception_ptr failure;
      try {
        execute(command, skip);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure && !failure_) failure_ = failure;
      // Waking the host after each command would take time from the kernels' threads: it waits for
      // an idle stream, or for room in the ring where the ring is smaller than a program.
      const bool was_full = put_ - done_ == ring_.size();
      ++done_;
      if (was_full || done_ == put_) fewer_.notify_all();
    }
  }

  void execute(const Command& command, bool skip) const {
    switch (command.kind) {
      case Command::Kind::kernel:
        if (skip) break;
        note_start(command);
        (*command.kernel)(command.args);
        note_end(command);
        break;
      case Command::Kind::copy:
        if (skip) break;
        note_start(command);
        copy(command);
        note_end(command);
        break;
      case Command::Kind::record:  // also after a failure, or other streams would wait for ever
        command.event->store(command.count, std::memory_order_release);
        command.event->notify_all();
        break;
      case Command::Kind::wait: {
        std::uint64_t seen = command.event->load(std::memory_order_acquire);
        while (seen < command.count) {
          command.event->wait(seen, std::memory_order_acquire);
          seen = command.event->load(std::memory_order_acquire);
        }
        break;
      }
    }
  }

  static void note_start(const Command& command) {
    if (command.time != nullptr) command.time->start_ns = now_ns();
  }
  static void note_end(const Command& command) {
    if (command.time != nullptr) command.time->end_ns = now_ns();
  }

  void copy(const Command& command) const {
    const Clock::time_point start = Clock::now();
    std::memcpy(command.to, command.from, static_cast<std::size_t>(command.bytes));
    if (!pace_) return;
    const double seconds =
        pace_->latency_us * 1e-6 +
        (pace_->bytes_per_s > 0 ? static_cast<double>(command.bytes) / pace_->bytes_per_s : 0);
    std::this_thread::sleep_until(start + std::chrono::duration_cast<Clock::duration>(
                                              std::chrono::duration<double>(seconds)));
  }

  std::optional<LinkPace> pace_;
  std::mutex mutex_;
  std::condition_variable more_;   // the worker waits for commands
  std::condition_variable fewer_;  // the host waits for room, or for none to be left
  std::vector<Command> ring_ = std::vector<Command>(16);
  std::size_t put_ = 0;
  std::size_t taken_ = 0;
  std::size_t done_ = 0;
  bool stopping_ = false;
  std::exception_ptr failure_;
  std::thread worker_;  // last: it uses the others
};

// By all processors, since the system clears each page when it is first touched. Parts begin at
// huge pages.
void touch_pages(void* memory, std::int64_t bytes) {
  constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
  const std::int64_t num_pages = (bytes + kHugePage - 1) / kHugePage;
  const std::int64_t num_parts = std::min<std::int64_t>(available_processors(), num_pages);
  const auto touch_part = [&](std::int64_t part) {
    const std::int64_t begin = num_pages * part / num_parts * kHugePage;
    const std::int64_t end = std::min(bytes, num_pages * (part + 1) / num_parts * kHugePage);
    std::memset(static_cast<char*>(memory) + begin, 0, static_cast<std::size_t>(end - begin));
  };
  std::vector<std::thread> threads;
  for (std::int64_t part = 1; part < num_parts; ++part) threads.emplace_back(touch_part, part);
  if (num_parts > 0) touch_part(0);
  for (std::thread& thread : threads) thread.join();
}

class CpuDevice : public Device {
 public:
  CpuDevice(DeviceKind kind, std::optional<LinkPace> pace)
      : kind_(kind), compute_({}), copy_out_(pace), copy_in_(pace) {}
  CpuDevice(const CpuDevice&) = delete;
  CpuDevice& operator=(const CpuDevice&) = delete;

  DeviceKind kind() const override { return kind_; }
  std::string description() const override {
    return std::string(to_string(kind_)) + " (" +
           std::to_string(std::thread::hardware_concurrency()) + " processors)";
  }

  void* allocate(std::int64_t bytes) override { return memory_.allocate(bytes, "the arena"); }
  void touch(void* memory, std::int64_t bytes) override { touch_pages(memory, bytes); }
  void release(void* memory) override { memory_.release(memory); }
  MemoryCounters counters() const override { return memory_.counters(); }

  void reserve(std::int64_t num_events, std::int64_t num_commands) override {
    synchronize();
    for (Stream* stream : {&compute_, &copy_out_, &copy_in_}) stream->reserve(num_commands);
    if (events_.size() < static_cast<std::size_t>(num_events)) {
      events_ = std::vector<EventCounter>(static_cast<std::size_t>(num_events));
      issued_.assign(events_.size(), 0);
    }
  }
  void launch(StreamId stream, const Kernel& kernel, const KernelArgs& args,
              TimeSpan* time) override {
    Command command;
    command.kernel = &kernel;
    command.time = time;
    command.args = args;
    at(stream).put(command);
  }
  void copy(StreamId stream, void* to, const void* from, std::int64_t bytes,
            TimeSpan* time) override {
    Command command;
    command.time = time;
    command.kind = Command::Kind::copy;
    command.to = to;
    command.from = from;
    command.bytes = bytes;
    at(stream).put(command);
  }
  void record(StreamId stream, EventId event) override {
    at(stream).put(event_command(Command::Kind::record, event, ++issued_[index(event)]));
  }
  void wait(StreamId stream, EventId event) override {
    at(stream).put(event_command(Command::Kind::wait, event, issued_[index(event)]));
  }
  void synchronize() override {
    std::exception_ptr first;
    for (Stream* stream : {&compute_, &copy_out_, &copy_in_}) {
      const std::exception_ptr failure = stream->drain();
      if (failure && !first) first = failure;
    }
    if (first) std::rethrow_exception(first);
  }

 private:
  Stream& at(StreamId stream) {
    return stream == StreamId::compute    ? compute_
           : stream == StreamId::copy_out ? copy_out_
                                          : copy_in_;
  }
  Command event_command(Command::Kind kind, EventId event, std::uint64_t count) {
    Command command;
    command.kind = kind;
    command.event = &events_[index(event)];
    command.count = count;
    return command;
  }

  DeviceKind kind_;
  CountedMemory memory_;
  std::vector<EventCounter> events_;
  std::vector<std::uint64_t> issued_;
  Stream compute_;
  Stream copy_out_;
  Stream copy_in_;
};

}  // namespace

const char* to_string(StreamId stream) {
  switch (stream) {
    case StreamId::compute: return "compute";
    case StreamId::copy_out: return "copy_out";
    case StreamId::copy_in: return "copy_in";
  }
  return "?";
}

LinkPace parse_link_pace(std::string_view text) {
  LinkPace pace;
  const std::size_t comma = text.find(',');
  std::string_view rate = text.substr(0, comma);
  bool good = rate.ends_with("/s");
  if (good) rate.remove_suffix(2);
  if (good) pace.bytes_per_s = static_cast<double>(parse_bytes(rate));
  good = good && pace.bytes_per_s > 0;
  if (good && comma != std::string_view::npos) {
    const std::string_view latency = text.substr(comma + 1);
    const auto [end, error] =
        std::from_chars(latency.data(), latency.data() + latency.size(), pace.latency_us);
    good = error == std::errc() && std::isfinite(pace.latency_us) && pace.latency_us >= 0 &&
           std::string_view(end, static_cast<std::size_t>(latency.data() + latency.size() - end)) ==
               "us";
  }
  if (!good)
    throw ConfigError("\"" + std::string(text) + "\" is not a link; write it as 12GB/s,10us");
  return pace;
}

std::unique_ptr<Device> make_cpu_device(DeviceKind kind, std::optional<LinkPace> pace) {
  return std::make_unique<CpuDevice>(kind, pace);
}

}  // namespace layup
