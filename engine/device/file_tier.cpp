// SPDX-License-Identifier: Apache-2.0
#include "engine/device/file_tier.h"

#include <fcntl.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "engine/error.h"
#include "engine/shape.h"

namespace layup {
namespace {

constexpr std::int64_t kPartBytes = std::int64_t{1} << 20;  // of a copy, in flight with others

// As linux/magic.h has them.
constexpr std::int64_t kTmpfsMagic = 0x01021994;
constexpr std::int64_t kRamfsMagic = 0x858458f6;

std::string system_error(int code) {
  return std::string(std::strerror(code)) + " (errno " + std::to_string(code) + ")";
}

class OpenFile {
 public:
  explicit OpenFile(int file) : file_(file) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (file_ >= 0) close(file_);
  }
  int get() const { return file_; }
  int release() { return std::exchange(file_, -1); }

 private:
  int file_;
};

// A file without a name. Where the file system cannot make one, its name is gone at once.
int open_unnamed(const std::string& folder) {
  const int unnamed = open(folder.c_str(), O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
  if (unnamed >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return unnamed;
  std::string name = folder + "/layup-spill-XXXXXX";
  const int file = mkostemp(name.data(), O_CLOEXEC);
  if (file >= 0) unlink(name.c_str());
  return file;
}

[[noreturn]] void refuse(const std::filesystem::path& folder, const std::string& reason) {
  throw ConfigError("memory.spill: " + folder.string() + " " + reason);
}

int open_in(const std::filesystem::path& folder) {
  if (!has_uring())
    throw DeviceError(
        "memory.spill: this build has no file tier, since it was made without liburing; install "
        "liburing-dev and build again, or remove \"spill\"");
  if (!std::filesystem::is_directory(folder))
    refuse(folder, "is not a folder; name one on a disk, as \"file:/var/tmp\"");
  OpenFile file(open_unnamed(folder.string()));
  if (file.get() < 0)
    refuse(folder, "holds no files of ours: " + system_error(errno) + "; name a folder that you " +
                       "may write to");
  struct statfs system {};
  if (fstatfs(file.get(), &system) == 0) {
    const auto magic = static_cast<std::int64_t>(static_cast<std::uint32_t>(system.f_type));
    if (magic == kTmpfsMagic || magic == kRamfsMagic)
      refuse(folder, std::string("is a ") + (magic == kTmpfsMagic ? "tmpfs" : "ramfs") +
                         ", whose files are in memory, so that nothing would be saved; name a "
                         "folder on a disk, or leave \"spill\" out and let the host tier hold "
                         "what is moved away");
  }
  // Direct from here on: a file system that cannot says so now.
  const int flags = fcntl(file.get(), F_GETFL);
  if (flags < 0 || fcntl(file.get(), F_SETFL, flags | O_DIRECT) != 0)
    refuse(folder, "is on a file system without direct I/O: " + system_error(errno) +
                       "; name a folder on another one");
  return file.release();
}

// The library's emulation, for file systems that cannot reserve, writes single bytes: not directly.
void reserve_space(int file, std::int64_t bytes, const std::filesystem::path& folder) {
  const int flags = fcntl(file, F_GETFL);
  fcntl(file, F_SETFL, flags & ~O_DIRECT);
  int code = posix_fallocate(file, 0, bytes);
  while (code == EINTR) code = posix_fallocate(file, 0, bytes);
  fcntl(file, F_SETFL, flags);
  if (code != 0)
    throw DeviceError("the file tier needs " + format_bytes(bytes) + " (" + std::to_string(bytes) +
                      " bytes) in " + folder.string() + ": " + system_error(code) +
                      "; free space there, name another folder in \"spill\", or raise the budget");
}

class PlainQueue : public IoQueue {
 public:
  PlainQueue(int file, IoDirection direction) : file_(file), direction_(direction) {}

  void start(int number, const IoRequest& request) override {
    const auto length = static_cast<std::size_t>(request.bytes);
    std::int64_t result = -1;
    do {
      result = direction_ == IoDirection::write
                   ? pwrite(file_, request.memory, length, request.offset)
                   : pread(file_, request.memory, length, request.offset);
    } while (result < 0 && errno == EINTR);
    done_[static_cast<std::size_t>(num_done_++)] = {number, result < 0 ? -errno : result};
  }
  Done wait() override {
    LAYUP_ASSERT(num_done_ > 0);
    return done_[static_cast<std::size_t>(--num_done_)];
  }

 private:
  int file_;
  IoDirection direction_;
  std::array<Done, kDepth> done_{};
  int num_done_ = 0;
};

}  // namespace

std::unique_ptr<IoQueue> make_plain_queue(int file, IoDirection direction) {
  return std::make_unique<PlainQueue>(file, direction);
}

FileTier::FileTier(const std::filesystem::path& folder, std::int64_t bytes)
    : name_("file in " + folder.string()), method_("io_uring") {
  OpenFile file(open_in(folder));
  reserve_space(file.get(), bytes, folder);
  std::string refusal;
  writes_ = make_uring_queue(file.get(), IoDirection::write, refusal);
  if (writes_) reads_ = make_uring_queue(file.get(), IoDirection::read, refusal);
  if (!writes_ || !reads_) {
    method_ = "pread and pwrite, since the kernel refuses io_uring: " + refusal;
    writes_ = make_plain_queue(file.get(), IoDirection::write);
    reads_ = make_plain_queue(file.get(), IoDirection::read);
  }
  file_ = file.release();
}

FileTier::FileTier(std::string name, std::unique_ptr<IoQueue> writes,
                   std::unique_ptr<IoQueue> reads)
    : name_(std::move(name)),
      method_("other queues"),
      writes_(std::move(writes)),
      reads_(std::move(reads)) {}

FileTier::~FileTier() {
  writes_.reset();
  reads_.reset();
  if (file_ >= 0) close(file_);
}

void FileTier::write(std::int64_t offset, const void* from, std::int64_t bytes) {
  transfer(*writes_, "write to", {offset, const_cast<void*>(from), bytes});
}

void FileTier::read(std::int64_t offset, void* to, std::int64_t bytes) {
  transfer(*reads_, "read from", {offset, to, bytes});
}

void FileTier::transfer(IoQueue& queue, const char* verb, const IoRequest& whole) const {
  LAYUP_ASSERT(whole.offset % kFileAlignment == 0 && whole.bytes % kFileAlignment == 0 &&
               reinterpret_cast<std::uintptr_t>(whole.memory) % kFileAlignment == 0);
  std::array<IoRequest, IoQueue::kDepth> parts;
  std::array<int, IoQueue::kDepth> free_numbers;
  int num_free = 0;
  while (num_free < IoQueue::kDepth) {
    free_numbers[static_cast<std::size_t>(num_free)] = IoQueue::kDepth - 1 - num_free;
    ++num_free;
  }
  IoRequest failed;
  std::int64_t failure = 0;  // what the first part that went wrong came to
  bool has_failed = false;
  std::int64_t started = 0;
  // After a failure nothing is started, but what is in flight still uses the memory.
  while ((started < whole.bytes && !has_failed) || num_free < IoQueue::kDepth) {
    if (started < whole.bytes && !has_failed && num_free > 0) {
      const auto number =
          static_cast<std::size_t>(free_numbers[static_cast<std::size_t>(--num_free)]);
      parts[number] = {whole.offset + started, static_cast<char*>(whole.memory) + started,
                       std::min(kPartBytes, whole.bytes - started)};
      started += parts[number].bytes;
      queue.start(static_cast<int>(number), parts[number]);
      continue;
    }
    const IoQueue::Done done = queue.wait();
    free_numbers[static_cast<std::size_t>(num_free++)] = done.number;
    const IoRequest& part = parts[static_cast<std::size_t>(done.number)];
    if (done.result == part.bytes || has_failed) continue;
    has_failed = true;
    failed = part;
    failure = done.result;
  }
  if (!has_failed) return;
  throw DeviceError(
      "cannot " + std::string(verb) + " the file tier (" + name_ + "), " +
      std::to_string(failed.bytes) + " bytes at " + std::to_string(failed.offset) + ": " +
      (failure < 0 ? system_error(static_cast<int>(-failure))
                   : "only " + std::to_string(failure) + " bytes were done, " + system_error(EIO)));
}

void require_spill_folder(const std::filesystem::path& folder) {
  const OpenFile file(open_in(folder));
}

}  // namespace layup
