// SPDX-License-Identifier: Apache-2.0
// The file tier: a block of bytes like the host tier's, but in a file, so that it takes no memory.
//
// Reads and writes are direct: nothing of the file stays in the page cache. Offsets, addresses and
// lengths are therefore multiples of kFileAlignment; the plan sees to that, and so nothing needs a
// staging buffer. The file has no name and its space is reserved when it is opened: a run that is
// killed leaves nothing behind, and a disk that is too small is found out before the first step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "engine/graph/physical_graph.h"

namespace layup {

// A part of a copy.
struct IoRequest {
  std::int64_t offset = 0;
  void* memory = nullptr;
  std::int64_t bytes = 0;
};

// A queue of reads or of writes on one file, for one thread at a time.
class IoQueue {
 public:
  static constexpr int kDepth = 8;  // in flight at most

  IoQueue() = default;
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;
  virtual ~IoQueue() = default;

  // A number from 0 to kDepth - 1 that is not in flight names the request. Allocates nothing.
  virtual void start(int number, const IoRequest& request) = 0;
  struct Done {
    int number = 0;
    std::int64_t result = 0;  // bytes, or -errno
  };
  // Blocks until one of those in flight is done, in any order.
  virtual Done wait() = 0;
};

enum class IoDirection : std::uint8_t { read, write };

// Does each request at once with pread or pwrite.
std::unique_ptr<IoQueue> make_plain_queue(int file, IoDirection direction);
// Keeps requests in flight with io_uring. Null, with the reason, where the kernel refuses that (as
// containers often do).
std::unique_ptr<IoQueue> make_uring_queue(int file, IoDirection direction, std::string& refusal);
// Does this build have io_uring (liburing)? Without it there is no file tier.
bool has_uring();

class FileTier {
 public:
  // Opens a file in `folder` and reserves `bytes`. Throws as require_spill_folder; DeviceError if
  // the space cannot be had.
  FileTier(const std::filesystem::path& folder, std::int64_t bytes);
  // On other queues, for tests; `name` stands for the file in messages.
  FileTier(std::string name, std::unique_ptr<IoQueue> writes, std::unique_ptr<IoQueue> reads);
  FileTier(const FileTier&) = delete;
  FileTier& operator=(const FileTier&) = delete;
  ~FileTier();

  // Block until all bytes are there; large copies go in parts, several in flight. One thread may
  // write while another reads. Allocate nothing. Throw DeviceError with path, what was tried and
  // the system's error; a short read or write is one. Nothing is in flight when they throw.
  void write(std::int64_t offset, const void* from, std::int64_t bytes);
  void read(std::int64_t offset, void* to, std::int64_t bytes);

  // "file in /var/tmp"
  const std::string& name() const { return name_; }
  // "io_uring"; otherwise what is used instead, and why.
  const std::string& method() const { return method_; }
  bool uses_uring() const { return method_ == "io_uring"; }

 private:
  void transfer(IoQueue& queue, const char* verb, const IoRequest& whole) const;

  std::string name_;
  std::string method_;
  int file_ = -1;
  std::unique_ptr<IoQueue> writes_;
  std::unique_ptr<IoQueue> reads_;
};

// Throws ConfigError unless files can be made in `folder` and read and written directly: it is
// missing, cannot be written, lies in memory (tmpfs, ramfs), or its file system knows no direct
// I/O. DeviceError if this build has no file tier.
void require_spill_folder(const std::filesystem::path& folder);

}  // namespace layup
