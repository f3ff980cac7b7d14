// SPDX-License-Identifier: Apache-2.0
#include "engine/device/recording_device.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "engine/error.h"
#include "engine/graph/physical_graph.h"
#include "engine/shape.h"

namespace layup {
namespace {

// As memory from the system is: good for direct I/O.
constexpr std::align_val_t kBlockAlignment{kFileAlignment};

std::string to_string(const RecordedAddress& address) {
  if (address.block < 0) return "host";
  return "block " + std::to_string(address.block) + "+" + std::to_string(address.offset);
}

}  // namespace

std::string to_string(const RecordedCall& call) {
  const std::string stream = std::string(to_string(call.stream)) + ": ";
  switch (call.kind) {
    case RecordedCall::Kind::launch: return stream + "launch";
    case RecordedCall::Kind::copy:
      return stream + "copy " + std::to_string(call.bytes) + " bytes, " + to_string(call.from) +
             " -> " + to_string(call.to);
    case RecordedCall::Kind::copy_file: {
      const std::string file = "file+" + std::to_string(call.file_offset);
      const bool writes = call.direction == IoDirection::write;
      return stream + "copy " + std::to_string(call.bytes) + " bytes, " +
             (writes ? to_string(call.from) : file) + " -> " + (writes ? file : to_string(call.to));
    }
    case RecordedCall::Kind::record: return stream + "record " + std::to_string(index(call.event));
    case RecordedCall::Kind::wait: return stream + "wait " + std::to_string(index(call.event));
    case RecordedCall::Kind::synchronize: return "synchronize";
  }
  return "?";
}

RecordingDevice::~RecordingDevice() {
  for (const BlockOfMemory& block : blocks_) ::operator delete(block.memory, kBlockAlignment);
}

std::string RecordingDevice::calls_text() const {
  std::string text;
  for (const RecordedCall& call : calls_) text += to_string(call) + "\n";
  return text;
}

void* RecordingDevice::allocate(std::int64_t bytes) {
  if (allocations_left_ && --*allocations_left_ < 0) {
    allocations_left_ = 0;
    throw DeviceError("the recording device was told to have no " + format_bytes(bytes) +
                      " of memory");
  }
  auto* memory =
      static_cast<char*>(::operator new(static_cast<std::size_t>(bytes), kBlockAlignment));
  blocks_.push_back({memory, bytes, num_blocks_++});
  counters_.live_bytes += bytes;
  counters_.peak_bytes = std::max(counters_.peak_bytes, counters_.live_bytes);
  ++counters_.num_allocations;
  return memory;
}

void RecordingDevice::touch(void* memory, std::int64_t bytes) {
  std::memset(memory, 0, static_cast<std::size_t>(bytes));
}

void RecordingDevice::release(void* memory) {
  const auto found = std::find_if(blocks_.begin(), blocks_.end(), [&](const BlockOfMemory& block) {
    return block.memory == memory;
  });
  LAYUP_ASSERT(found != blocks_.end());
  counters_.live_bytes -= found->bytes;
  ::operator delete(memory, kBlockAlignment);
  blocks_.erase(found);
}

void RecordingDevice::reserve(std::int64_t num_events, std::int64_t num_commands) {
  num_events_ = std::max(num_events_, num_events);
  num_commands_ = std::max(num_commands_, num_commands);
}

RecordedAddress RecordingDevice::address(const void* pointer) const {
  const char* at = static_cast<const char*>(pointer);
  for (const BlockOfMemory& block : blocks_)
    if (at >= block.memory && at < block.memory + block.bytes)
      return {block.number, at - block.memory};
  return {};
}

void RecordingDevice::note(const RecordedCall& call) {
  calls_.push_back(call);
  if (call.kind == RecordedCall::Kind::synchronize) return;
  LAYUP_ASSERT(++commands_in_flight_ <= num_commands_);
  if (call.kind == RecordedCall::Kind::record || call.kind == RecordedCall::Kind::wait)
    LAYUP_ASSERT(static_cast<std::int64_t>(index(call.event)) < num_events_);
}

void RecordingDevice::run(const std::function<void()>& work) {
  if (!runs_inline_ || failure_) return;
  try {
    work();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void RecordingDevice::note_time(TimeSpan* time) {
  if (time == nullptr) return;
  time->start_ns = 1000 * num_timed_++;
  time->end_ns = time->start_ns + 500;
}

void RecordingDevice::launch(StreamId stream, const Kernel& kernel, const KernelArgs& args,
                             TimeSpan* time) {
  RecordedCall call;
  call.kind = RecordedCall::Kind::launch;
  call.stream = stream;
  note(call);
  note_time(time);
  if (observer_) observer_(args);
  run([&] { kernel(args); });
}

void RecordingDevice::copy(StreamId stream, void* to, const void* from, std::int64_t bytes,
                           TimeSpan* time) {
  RecordedCall call;
  call.kind = RecordedCall::Kind::copy;
  call.stream = stream;
  call.bytes = bytes;
  call.to = address(to);
  call.from = address(from);
  note(call);
  note_time(time);
  run([&] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); });
}

void RecordingDevice::copy_file(StreamId stream, const FileCopy& copy, TimeSpan* time) {
  RecordedCall call;
  call.kind = RecordedCall::Kind::copy_file;
  call.stream = stream;
  call.bytes = copy.bytes;
  call.direction = copy.direction;
  (copy.direction == IoDirection::write ? call.from : call.to) = address(copy.memory);
  call.file_offset = copy.offset;
  note(call);
  note_time(time);
  run([&] {
    if (copy.direction == IoDirection::write)
      copy.file->write(copy.offset, copy.memory, copy.bytes);
    else
      copy.file->read(copy.offset, copy.memory, copy.bytes);
  });
}

void RecordingDevice::record(StreamId stream, EventId event) {
  RecordedCall call;
  call.kind = RecordedCall::Kind::record;
  call.stream = stream;
  call.event = event;
  note(call);
}

void RecordingDevice::wait(StreamId stream, EventId event) {
  RecordedCall call;
  call.kind = RecordedCall::Kind::wait;
  call.stream = stream;
  call.event = event;
  note(call);
}

void RecordingDevice::synchronize() {
  RecordedCall call;
  call.kind = RecordedCall::Kind::synchronize;
  note(call);
  commands_in_flight_ = 0;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace layup
