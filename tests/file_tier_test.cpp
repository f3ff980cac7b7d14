// SPDX-License-Identifier: Apache-2.0
// The file tier by itself: what goes in comes back, nothing is left behind, and every failure stops
// the copy with a message. Queues that fail on purpose stand in for broken disks.
#include "engine/device/file_tier.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <thread>
#include <vector>

#include "engine/allocation_counter.h"
#include "engine/device/device.h"
#include "engine/error.h"
#include "tests/support/disk_folder.h"

namespace layup {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// Memory that direct I/O accepts.
class Aligned {
 public:
  explicit Aligned(std::int64_t bytes)
      : bytes_(bytes),
        data_(static_cast<char*>(std::aligned_alloc(static_cast<std::size_t>(kFileAlignment),
                                                    static_cast<std::size_t>(bytes)))) {}
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  ~Aligned() { std::free(data_); }

  void fill(std::uint32_t seed) {
    for (std::int64_t i = 0; i < bytes_; ++i) {
      seed = seed * 1664525U + 1013904223U;
      data_[i] = static_cast<char>(seed >> 24U);
    }
  }
  bool operator==(const Aligned& other) const {
    return std::equal(data_, data_ + bytes_, other.data_);
  }
  char* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_;
  char* data_;
};

// Sizes around the parts that a copy is made of, and copies of more parts than are in flight.
void check_round_trips(FileTier& file) {
  const std::vector<std::int64_t> sizes = {
      kFileAlignment, kMiB - kFileAlignment, kMiB, kMiB + kFileAlignment, 7 * kMiB, 8 * kMiB,
      9 * kMiB,       21 * kMiB + 12288};
  std::int64_t offset = 0;
  std::vector<std::unique_ptr<Aligned>> written;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    written.push_back(std::make_unique<Aligned>(sizes[i]));
    written.back()->fill(static_cast<std::uint32_t>(i));
    file.write(offset, written.back()->data(), sizes[i]);
    offset += sizes[i];
  }
  offset = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Aligned read(sizes[i]);
    file.read(offset, read.data(), sizes[i]);
    INFO("of " << sizes[i] << " bytes");
    CHECK(read == *written[i]);
    offset += sizes[i];
  }
}

TEST_CASE("file tier: what is written is read, with io_uring and without") {
  const test::DiskFolder disk;
  if (!disk.exists()) return;
  FileTier file(disk.path(), 64 * kMiB);
  CHECK(file.name() == "file in " + disk.path().string());
  MESSAGE("by " << file.method());
  check_round_trips(file);

  const int plain = open(disk.path().c_str(), O_TMPFILE | O_RDWR | O_DIRECT, 0600);
  REQUIRE(plain >= 0);
  FileTier other("plain file", make_plain_queue(plain, IoDirection::write),
                 make_plain_queue(plain, IoDirection::read));
  check_round_trips(other);
  close(plain);
}

TEST_CASE("file tier: nothing shows in the folder, and copies take nothing from the heap") {
  const test::DiskFolder disk;
  if (!disk.exists()) return;
  FileTier file(disk.path(), 16 * kMiB);
  CHECK(std::filesystem::is_empty(disk.path()));
  Aligned memory(12 * kMiB);
  memory.fill(1);
  allocation_counter::start();
  file.write(0, memory.data(), memory.bytes());
  file.read(0, memory.data(), memory.bytes());
  CHECK(allocation_counter::stop().allocations == 0);
}

TEST_CASE("file tier: one thread writes while another reads") {
  const test::DiskFolder disk;
  if (!disk.exists()) return;
  FileTier file(disk.path(), 32 * kMiB);
  Aligned first(16 * kMiB);
  first.fill(1);
  file.write(0, first.data(), first.bytes());
  Aligned second(16 * kMiB);
  second.fill(2);
  const Aligned back(16 * kMiB);
  std::thread writer([&] {
    for (int i = 0; i < 4; ++i) file.write(16 * kMiB, second.data(), second.bytes());
  });
  for (int i = 0; i < 4; ++i) file.read(0, back.data(), back.bytes());
  writer.join();
  CHECK(back == first);
  file.read(16 * kMiB, back.data(), back.bytes());
  CHECK(back == second);
}

TEST_CASE("file tier: folders that cannot hold it are refused, with a way out") {
  if (!has_uring()) {
    CHECK_THROWS_WITH_AS(require_spill_folder("/"), doctest::Contains("liburing-dev"), DeviceError);
    return;
  }
  CHECK_THROWS_WITH_AS(require_spill_folder("/nowhere/at/all"),
                       doctest::Contains("/nowhere/at/all is not a folder"), ConfigError);
  CHECK_THROWS_WITH_AS(require_spill_folder("/proc"), doctest::Contains("you may write to"),
                       ConfigError);
  const std::filesystem::path in_memory = "/dev/shm";
  if (std::filesystem::is_directory(in_memory) && access(in_memory.c_str(), W_OK) == 0)
    CHECK_THROWS_WITH_AS(FileTier(in_memory, kMiB), doctest::Contains("/dev/shm is a tmpfs"),
                         ConfigError);
}

TEST_CASE("file tier: space that is not there is missed before anything is written") {
  const test::DiskFolder disk;
  if (!disk.exists()) return;
  // More than any file system of today.
  const std::int64_t bytes = std::int64_t{1} << 60;
  CHECK_THROWS_WITH_AS(FileTier(disk.path(), bytes), doctest::Contains("1048576.0 TiB"),
                       DeviceError);
  CHECK_THROWS_WITH_AS(FileTier(disk.path(), bytes), doctest::Contains(disk.path().c_str()),
                       DeviceError);
  CHECK(std::filesystem::is_empty(disk.path()));
}

TEST_CASE("file tier: a limit on the size of files is an error with path and errno") {
  const test::DiskFolder disk;
  if (!disk.exists()) return;
  FileTier file(disk.path(), 16 * kMiB);
  Aligned memory(8 * kMiB);
  memory.fill(1);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  getrlimit(RLIMIT_FSIZE, &old_limit);
  rlimit limit = old_limit;
  limit.rlim_cur = static_cast<rlim_t>(4 * kMiB + kMiB / 2);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  std::string text;
  try {
    file.write(0, memory.data(), memory.bytes());
  } catch (const DeviceError& error) {
    text = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  // The part at the limit is short, those behind it fail: whichever comes first.
  CHECK(text.find(disk.path().string()) != std::string::npos);
  CHECK(text.find("errno") != std::string::npos);
  CHECK_NOTHROW(file.write(0, memory.data(), memory.bytes()));
}

// Requests in flight are kept and answered from the last to the first; the `bad`-th of all comes to
// `result`.
class BrokenQueue : public IoQueue {
 public:
  BrokenQueue(int bad, std::int64_t result, int& num_started, int& num_in_flight)
      : bad_(bad), result_(result), started_(num_started), in_flight_(num_in_flight) {}
  void start(int number, const IoRequest& request) override {
    REQUIRE(in_flight_ < kDepth);
    for (int i = 0; i < in_flight_; ++i) REQUIRE(done_[i].number != number);
    done_[in_flight_++] = {number, started_++ == bad_ ? result_ : request.bytes};
  }
  Done wait() override {
    REQUIRE(in_flight_ > 0);
    return done_[--in_flight_];
  }

 private:
  int bad_;
  std::int64_t result_;
  int& started_;
  int& in_flight_;
  Done done_[kDepth];
};

TEST_CASE("file tier: short and failed parts stop the copy, and nothing stays in flight") {
  const Aligned memory(24 * kMiB);
  struct Fault {
    int bad;
    std::int64_t result;
    const char* text;
  };
  for (const Fault& fault : {Fault{0, -EIO, "errno 5"}, Fault{7, -ENOSPC, "No space left"},
                             Fault{8, 4096, "only 4096 bytes"}, Fault{23, 0, "only 0 bytes"},
                             Fault{11, kMiB - 1, "errno 5"}}) {
    int started = 0;
    int in_flight = 0;
    const auto queue = [&] {
      started = 0;
      return std::make_unique<BrokenQueue>(fault.bad, fault.result, started, in_flight);
    };
    FileTier writes("a broken disk", queue(), nullptr);
    CAPTURE(fault.bad);
    CHECK_THROWS_WITH_AS(writes.write(0, memory.data(), memory.bytes()),
                         doctest::Contains(fault.text), DeviceError);
    CHECK(in_flight == 0);
    FileTier reads("a broken disk", nullptr, queue());
    CHECK_THROWS_WITH_AS(reads.read(0, memory.data(), memory.bytes()),
                         doctest::Contains("read from the file tier (a broken disk)"), DeviceError);
    CHECK(in_flight == 0);
    // The fault is over.
    CHECK_NOTHROW(reads.read(0, memory.data(), memory.bytes()));
  }
}

TEST_CASE("file tier: what is not aligned is a mistake of the plan") {
  int started = 0;
  int in_flight = 0;
  FileTier file("never used", std::make_unique<BrokenQueue>(-1, 0, started, in_flight), nullptr);
  const Aligned memory(2 * kFileAlignment);
  CHECK_THROWS_AS(file.write(64, memory.data(), kFileAlignment), std::logic_error);
  CHECK_THROWS_AS(file.write(0, memory.data() + 64, kFileAlignment), std::logic_error);
  CHECK_THROWS_AS(file.write(0, memory.data(), 64), std::logic_error);
  CHECK(started == 0);
  CHECK_NOTHROW(file.write(0, memory.data(), kFileAlignment));
}

TEST_CASE("file tier: a device copies to it in order, paced and timed, and reports what fails") {
  const test::DiskFolder disk;
  if (!disk.exists()) return;
  const auto device = make_cpu_device(DeviceKind::reference, parse_link_pace("100MB/s,1000us"));
  device->reserve(1, 16);
  const auto file = device->open_file(disk.path(), 2 * kMiB);
  Aligned from(kMiB);
  from.fill(5);
  const Aligned to(kMiB);
  TimeSpan out;
  TimeSpan in;
  device->copy_file(StreamId::copy_out,
                    {file.get(), IoDirection::write, kMiB, from.data(), from.bytes()}, &out);
  device->record(StreamId::copy_out, EventId{0});
  device->wait(StreamId::copy_in, EventId{0});
  device->copy_file(StreamId::copy_in, {file.get(), IoDirection::read, kMiB, to.data(), to.bytes()},
                    &in);
  device->synchronize();
  CHECK(to == from);
  CHECK(out.end_ns - out.start_ns >= 11'000'000);  // 10.5 ms and the latency
  CHECK(in.start_ns >= out.end_ns);

  int started = 0;
  int in_flight = 0;
  FileTier broken("a broken disk", std::make_unique<BrokenQueue>(0, -EIO, started, in_flight),
                  nullptr);
  device->copy_file(StreamId::copy_out,
                    {&broken, IoDirection::write, 0, from.data(), from.bytes()});
  CHECK_THROWS_WITH_AS(device->synchronize(), doctest::Contains("a broken disk"), DeviceError);
}

}  // namespace
}  // namespace layup
