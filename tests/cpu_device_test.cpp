// SPDX-License-Identifier: Apache-2.0
// Streams and events of the CPU devices. What order promises is also checked by TSan: the plain
// variables here are shared by threads and ordered by streams and events alone.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "engine/device/device.h"
#include "engine/error.h"
#include "engine/graph/physical_graph.h"
#include "engine/parallel.h"

namespace layup {
namespace {

using Clock = std::chrono::steady_clock;

constexpr EventId kFirst{0};
constexpr EventId kSecond{1};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

TEST_CASE("cpu device: a stream runs in order") {
  const auto device = make_cpu_device(DeviceKind::reference);
  device->reserve(0, 100);
  std::vector<int> order;
  order.reserve(100);
  std::vector<Kernel> kernels;
  for (int i = 0; i < 100; ++i)
    kernels.emplace_back([&order, i](const KernelArgs&) { order.push_back(i); });
  for (const Kernel& kernel : kernels) device->launch(StreamId::compute, kernel, {});
  device->synchronize();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(order == expected);
}

TEST_CASE("cpu device: arguments reach the kernel") {
  const auto device = make_cpu_device(DeviceKind::reference);
  device->reserve(0, 4);
  const float x = 3;
  float y = 0;
  const void* reads[] = {&x};
  void* writes[] = {&y};
  StepState state;
  state.learning_rate = 2;
  const Kernel kernel = [](const KernelArgs& args) {
    *args.write(0) = *args.read(0) * args.state->learning_rate;
  };
  device->launch(StreamId::compute, kernel, {reads, writes, nullptr, &state});
  device->synchronize();
  CHECK(y == 6);
}

TEST_CASE("cpu device: a wait holds back what follows until the record") {
  const auto device = make_cpu_device(DeviceKind::reference);
  device->reserve(2, 16);
  int value = 0;
  int copied = 0;
  int seen = 0;
  const Kernel slow = [&](const KernelArgs&) {
    nap();
    value = 7;
  };
  const Kernel look = [&](const KernelArgs&) { seen = copied; };
  for (int round = 0; round < 3; ++round) {
    value = copied = seen = 0;
    device->launch(StreamId::compute, slow, {});
    device->record(StreamId::compute, kFirst);
    device->wait(StreamId::copy_out, kFirst);
    device->copy(StreamId::copy_out, &copied, &value, sizeof value);
    device->record(StreamId::copy_out, kSecond);
    device->wait(StreamId::compute, kSecond);
    device->launch(StreamId::compute, look, {});
    device->synchronize();
    CHECK(copied == 7);
    CHECK(seen == 7);
  }
}

TEST_CASE("cpu device: a wait is for the latest record before it, not for older ones") {
  const auto device = make_cpu_device(DeviceKind::reference);
  device->reserve(1, 64);
  int value = 0;
  int seen = 0;
  const Kernel add = [&](const KernelArgs&) {
    nap();
    ++value;
  };
  const Kernel look = [&](const KernelArgs&) { seen = value; };
  for (int i = 0; i < 4; ++i) {
    device->launch(StreamId::compute, add, {});
    device->record(StreamId::compute, kFirst);
  }
  device->wait(StreamId::copy_in, kFirst);
  device->launch(StreamId::copy_in, look, {});
  device->synchronize();
  CHECK(seen == 4);
  // Of an event that was never recorded: nothing to wait for.
  const auto other = make_cpu_device(DeviceKind::reference);
  other->reserve(1, 4);
  other->wait(StreamId::compute, kFirst);
  CHECK_NOTHROW(other->synchronize());
}

TEST_CASE("cpu device: streams run beside each other") {
  const auto device = make_cpu_device(DeviceKind::reference);
  device->reserve(0, 4);
  std::atomic<int> here{0};
  // Each ends only when it has met the other.
  const Kernel meet = [&](const KernelArgs&) {
    ++here;
    const Clock::time_point start = Clock::now();
    while (here.load() < 2 && seconds_since(start) < 10) std::this_thread::yield();
  };
  device->launch(StreamId::compute, meet, {});
  device->launch(StreamId::copy_out, meet, {});
  const Clock::time_point start = Clock::now();
  device->synchronize();
  CHECK(here == 2);
  CHECK(seconds_since(start) < 10);
}

TEST_CASE("cpu device: what a member of a team throws is thrown on, once the others are done") {
  std::atomic<int> done{0};
  const auto body = [&](const TeamMember& member) {
    if (member.number == 0) throw DeviceError("bad member");
    ++done;
  };
  CHECK_THROWS_AS(as_team(3, body), DeviceError);
  int others = 0;
  as_team(3, [&](const TeamMember& member) {
    if (member.number == 0) others = member.num_members - 1;
  });
  CHECK(done == others);
}

TEST_CASE("cpu device: a failed kernel is reported once, and later work runs") {
  const auto device = make_cpu_device(DeviceKind::reference);
  device->reserve(2, 16);
  bool ran_behind = false;
  bool ran_later = false;
  const Kernel bad = [](const KernelArgs&) { throw DeviceError("bad kernel"); };
  const Kernel behind = [&](const KernelArgs&) { ran_behind = true; };
  const Kernel later = [&](const KernelArgs&) { ran_later = true; };
  device->launch(StreamId::compute, bad, {});
  device->launch(StreamId::compute, behind, {});
  device->record(StreamId::compute, kFirst);
  device->wait(StreamId::copy_out, kFirst);  // must not wait for ever
  device->record(StreamId::copy_out, kSecond);
  CHECK_THROWS_WITH_AS(device->synchronize(), "bad kernel", DeviceError);
  CHECK_FALSE(ran_behind);
  CHECK_NOTHROW(device->synchronize());
  device->launch(StreamId::compute, later, {});
  device->synchronize();
  CHECK(ran_later);
}

TEST_CASE("cpu device: the first of several failures is reported, and none is left behind") {
  const auto device = make_cpu_device(DeviceKind::reference);
  device->reserve(0, 16);
  const Kernel bad = [](const KernelArgs&) { throw DeviceError("one"); };
  const Kernel worse = [](const KernelArgs&) { throw DeviceError("two"); };
  device->launch(StreamId::compute, bad, {});
  device->launch(StreamId::compute, worse, {});
  device->launch(StreamId::copy_in, worse, {});
  CHECK_THROWS_WITH_AS(device->synchronize(), "one", DeviceError);
  CHECK_NOTHROW(device->synchronize());
}

TEST_CASE("cpu device: more commands than were reserved wait for room") {
  const auto device = make_cpu_device(DeviceKind::reference);
  int count = 0;
  const Kernel add = [&](const KernelArgs&) { ++count; };
  for (int i = 0; i < 1000; ++i) device->launch(StreamId::compute, add, {});
  device->synchronize();
  CHECK(count == 1000);
}

TEST_CASE("cpu device: many crossing waits end") {
  const auto device = make_cpu_device(DeviceKind::reference);
  constexpr std::uint32_t kRounds = 300;
  device->reserve(2 * kRounds, 8 * kRounds);
  std::vector<int> bytes(kRounds + 1, 0);
  bytes[0] = 1;
  std::vector<Kernel> kernels;
  for (std::uint32_t i = 0; i < kRounds; ++i)
    kernels.emplace_back([&bytes, i](const KernelArgs&) { ++bytes[i]; });
  for (std::uint32_t i = 0; i < kRounds; ++i) {
    const StreamId out = i % 2 == 0 ? StreamId::copy_out : StreamId::copy_in;
    device->launch(StreamId::compute, kernels[i], {});
    device->record(StreamId::compute, EventId{2 * i});
    device->wait(out, EventId{2 * i});
    device->copy(out, &bytes[i + 1], &bytes[i], sizeof(int));
    device->record(out, EventId{2 * i + 1});
    device->wait(StreamId::compute, EventId{2 * i + 1});
  }
  device->synchronize();
  CHECK(bytes[kRounds] == static_cast<int>(kRounds) + 1);
}

TEST_CASE("cpu device: a paced link takes its time, kernels do not") {
  const auto device = make_cpu_device(DeviceKind::reference, parse_link_pace("100MB/s,20000us"));
  device->reserve(0, 16);
  std::vector<char> from(1'000'000, 'x');
  std::vector<char> to(from.size());
  Clock::time_point start = Clock::now();
  for (int i = 0; i < 3; ++i)
    device->copy(StreamId::copy_out, to.data(), from.data(),
                 static_cast<std::int64_t>(from.size()));
  device->synchronize();
  // Three times 10 ms and the latency.
  CHECK(seconds_since(start) >= 0.09);
  CHECK(to == from);
  // Both directions at once.
  std::vector<char> back(from.size());
  start = Clock::now();
  for (int i = 0; i < 5; ++i) {
    device->copy(StreamId::copy_out, to.data(), from.data(),
                 static_cast<std::int64_t>(from.size()));
    device->copy(StreamId::copy_in, back.data(), from.data(),
                 static_cast<std::int64_t>(from.size()));
  }
  device->synchronize();
  CHECK(seconds_since(start) >= 0.15);
  CHECK(seconds_since(start) < 0.28);
}

TEST_CASE("cpu device: what is timed says when it ran") {
  const auto device = make_cpu_device(DeviceKind::reference, parse_link_pace("100MB/s,3000us"));
  device->reserve(1, 16);
  const Kernel slow = [](const KernelArgs&) { nap(); };
  const Kernel bad = [](const KernelArgs&) { throw DeviceError("bad kernel"); };
  std::vector<char> from(100'000, 'x');
  std::vector<char> to(from.size());
  TimeSpan kernel;
  TimeSpan copy;
  TimeSpan last;
  device->launch(StreamId::compute, slow, {}, &kernel);
  device->record(StreamId::compute, kFirst);
  device->wait(StreamId::copy_out, kFirst);
  device->copy(StreamId::copy_out, to.data(), from.data(), static_cast<std::int64_t>(from.size()),
               &copy);
  device->launch(StreamId::copy_out, slow, {}, &last);
  device->synchronize();
  CHECK(kernel.end_ns - kernel.start_ns >= 5'000'000);
  CHECK(copy.start_ns >= kernel.end_ns);
  CHECK(copy.end_ns - copy.start_ns >= 4'000'000);  // 1 ms and the latency
  CHECK(last.start_ns >= copy.end_ns);
  TimeSpan skipped;
  device->launch(StreamId::compute, bad, {});
  device->launch(StreamId::compute, slow, {}, &skipped);
  CHECK_THROWS_AS(device->synchronize(), DeviceError);
  CHECK(skipped.end_ns == 0);
}

TEST_CASE("cpu device: links are written as rate and latency") {
  CHECK(parse_link_pace("12GB/s,10us").bytes_per_s == 12e9);
  CHECK(parse_link_pace("12GB/s,10us").latency_us == 10);
  CHECK(parse_link_pace("1MiB/s").bytes_per_s == 1048576);
  for (const char* bad : {"", "12GB", "12GB/s,", "12GB/s,10", "12GB/s,-1us", "12GB/s,10us ",
                          "0GB/s", "fast", "12GB/s;10us", "12GB/s,nanus", "12GB/s,infus"}) {
    CAPTURE(std::string(bad));
    CHECK_THROWS_AS(parse_link_pace(bad), ConfigError);
  }
}

TEST_CASE("cpu device: memory is counted by what was asked for") {
  const auto device = make_cpu_device(DeviceKind::reference);
  void* a = device->allocate(1000);
  void* b = device->allocate(3000);
  CHECK(reinterpret_cast<std::uintptr_t>(a) % kAlignment == 0);
  CHECK(device->counters().live_bytes == 4000);
  device->release(a);
  CHECK(device->counters().live_bytes == 3000);
  void* c = device->allocate(500);
  CHECK(device->counters().peak_bytes == 4000);
  CHECK(device->counters().num_allocations == 3);
  device->release(b);
  device->release(c);
  CHECK(device->counters().live_bytes == 0);
  CHECK_THROWS_WITH_AS(device->allocate(std::int64_t{1} << 60), doctest::Contains("1048576.0 TiB"),
                       DeviceError);
  CHECK(device->counters().num_allocations == 3);
  CHECK(device->description().find("reference") == 0);
}

}  // namespace
}  // namespace layup
