// SPDX-License-Identifier: Apache-2.0
// What the executor asks of a device, seen by the recording one.
#include <doctest/doctest.h>

#include "engine/device/recording_device.h"
#include "engine/error.h"
#include "scheduler/executor.h"

namespace layup {
namespace {

// A kernel that doubles a number, a copy to the host behind it, one back into another place, and a
// kernel that adds one to that.
class SmallProgram {
 public:
  explicit SmallProgram(Device& device) : device_(device) {
    arena = static_cast<float*>(device.allocate(128));
    device.reserve(3, 32);
    add(Instruction::Kind::kernel, StreamId::compute, {}, EventId{0});
    add(Instruction::Kind::copy_out, StreamId::copy_out, {EventId{0}}, EventId{1});
    add(Instruction::Kind::copy_in, StreamId::copy_in, {EventId{1}}, EventId{2});
    add(Instruction::Kind::kernel, StreamId::compute, {EventId{1}, EventId{2}}, std::nullopt);
    bound[0].kernel = [this](const KernelArgs&) { arena[0] *= 2; };
    bound[1].reads = {arena};
    bound[2].writes = {arena + 16};
    bound[3].kernel = [this](const KernelArgs&) { arena[16] += 1; };
    for (const std::size_t copy : {1, 2}) {
      bound[copy].host = &host;
      bound[copy].bytes = sizeof(float);
    }
  }
  SmallProgram(const SmallProgram&) = delete;
  SmallProgram& operator=(const SmallProgram&) = delete;
  ~SmallProgram() { device_.release(arena); }

  float* arena = nullptr;
  float host = 0;
  std::vector<Instruction> instructions = std::vector<Instruction>(4);
  BoundProgram bound;

 private:
  void add(Instruction::Kind kind, StreamId stream, std::vector<EventId> waits,
           std::optional<EventId> records) {
    Instruction& instruction = instructions[bound.size()];
    instruction.kind = kind;
    instruction.stream = stream;
    instruction.waits = std::move(waits);
    instruction.records = records;
    bound.emplace_back().instruction = &instruction;
  }
  Device& device_;
};

TEST_CASE("executor: waits, work and record of each instruction in order") {
  RecordingDevice device;
  const SmallProgram program(device);
  execute(program.bound, device);
  CHECK(device.calls_text() ==
        "compute: launch\n"
        "compute: record 0\n"
        "copy_out: wait 0\n"
        "copy_out: copy 4 bytes, block 0+0 -> host\n"
        "copy_out: record 1\n"
        "copy_in: wait 1\n"
        "copy_in: copy 4 bytes, host -> block 0+64\n"
        "copy_in: record 2\n"
        "compute: wait 1\n"
        "compute: wait 2\n"
        "compute: launch\n"
        "synchronize\n");
}

TEST_CASE("executor: the same results inline and on threads") {
  RecordingDevice recording(true);
  const std::unique_ptr<Device> threads = make_cpu_device(DeviceKind::reference);
  for (Device* device : {static_cast<Device*>(&recording), threads.get()}) {
    const SmallProgram program(*device);
    program.arena[0] = 21;
    for (int round = 0; round < 3; ++round) execute(program.bound, *device);
    CHECK(program.host == 168);
    CHECK(program.arena[16] == 169);
  }
}

TEST_CASE("executor: every instruction is timed, or none") {
  RecordingDevice device(true);
  const SmallProgram program(device);
  program.arena[0] = 1;
  execute(program.bound, device);
  std::vector<TimeSpan> times(program.bound.size());
  execute(program.bound, device, times);
  for (std::size_t i = 0; i < times.size(); ++i) {
    CHECK(times[i].start_ns == static_cast<std::int64_t>(1000 * i));
    CHECK(times[i].end_ns == times[i].start_ns + 500);
  }
  times.pop_back();
  CHECK_THROWS_AS(execute(program.bound, device, times), std::logic_error);
}

TEST_CASE("executor: step by step, until a check says no") {
  RecordingDevice device(true);
  const SmallProgram program(device);
  program.arena[0] = 1;
  int seen = 0;
  const auto count = [&](const BoundInstruction&) { return ++seen > 0; };
  CHECK(execute_checked(program.bound, device, count) == nullptr);
  CHECK(seen == 4);
  const BoundInstruction* stopped = execute_checked(
      program.bound, device, [&](const BoundInstruction& bound) { return bound.host == nullptr; });
  CHECK(stopped == &program.bound[1]);
}

TEST_CASE("recording device: calls are values, memory is counted, allocations can fail") {
  RecordingDevice device;
  void* first = device.allocate(100);
  device.fail_allocations_after(1);
  void* second = device.allocate(50);
  CHECK_THROWS_AS(device.allocate(1), DeviceError);
  CHECK_THROWS_AS(device.allocate(1), DeviceError);
  CHECK(device.counters().num_allocations == 2);
  CHECK(device.counters().live_bytes == 150);
  device.release(first);
  CHECK(device.counters().live_bytes == 50);
  CHECK(device.counters().peak_bytes == 150);
  device.copy(StreamId::copy_in, second, &device, 8);
  device.copy(StreamId::copy_in, second, &device, 8);
  REQUIRE(device.calls().size() == 2);
  CHECK(device.calls()[0] == device.calls()[1]);
  CHECK(device.calls()[0].to == RecordedAddress{1, 0});
  CHECK(device.calls()[0].from == RecordedAddress{});
  device.release(second);
}

TEST_CASE("recording device: more than was reserved is a mistake") {
  RecordingDevice device;
  device.reserve(1, 2);
  device.record(StreamId::compute, EventId{0});
  CHECK_THROWS_AS(device.record(StreamId::compute, EventId{1}), std::logic_error);
  RecordingDevice busy;
  for (int i = 0; i < 16; ++i) busy.launch(StreamId::compute, {}, {});
  CHECK_THROWS_AS(busy.launch(StreamId::compute, {}, {}), std::logic_error);
}

TEST_CASE("recording device: an exception waits for the synchronisation") {
  RecordingDevice device(true);
  bool ran = false;
  const Kernel bad = [](const KernelArgs&) { throw DeviceError("bad kernel"); };
  const Kernel good = [&](const KernelArgs&) { ran = true; };
  CHECK_NOTHROW(device.launch(StreamId::compute, bad, {}));
  device.launch(StreamId::compute, good, {});
  CHECK_THROWS_WITH_AS(device.synchronize(), "bad kernel", DeviceError);
  CHECK_FALSE(ran);
  device.launch(StreamId::compute, good, {});
  CHECK_NOTHROW(device.synchronize());
  CHECK(ran);
}

}  // namespace
}  // namespace layup
