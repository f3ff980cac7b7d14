// SPDX-License-Identifier: Apache-2.0
// Linked where liburing is there; no_uring.cpp otherwise.
#include <liburing.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "engine/device/file_tier.h"
#include "engine/error.h"

namespace layup {
namespace {

class UringQueue : public IoQueue {
 public:
  UringQueue(int file, IoDirection direction) : file_(file), direction_(direction) {}
  UringQueue(const UringQueue&) = delete;
  UringQueue& operator=(const UringQueue&) = delete;
  ~UringQueue() override {
    if (is_open_) io_uring_queue_exit(&ring_);
  }

  // 0 or an errno.
  int open() {
    const int result = io_uring_queue_init(kDepth, &ring_, 0);
    is_open_ = result == 0;
    return -result;
  }

  void start(int number, const IoRequest& request) override {
    const auto slot = static_cast<std::size_t>(number);
    requests_[slot] = request;
    submit(slot);
  }

  Done wait() override {
    for (;;) {
      io_uring_cqe* entry = nullptr;
      int result = 0;
      do {
        result = io_uring_wait_cqe(&ring_, &entry);
      } while (result == -EINTR);
      LAYUP_ASSERT(result == 0);
      const Done done{static_cast<int>(entry->user_data), entry->res};
      io_uring_cqe_seen(&ring_, entry);
      if (done.result != -EINTR && done.result != -EAGAIN) return done;
      submit(static_cast<std::size_t>(done.number));
    }
  }

 private:
  // Vectored: the oldest calls, which every kernel with io_uring knows.
  void submit(std::size_t slot) {
    const IoRequest& request = requests_[slot];
    vectors_[slot] = {request.memory, static_cast<std::size_t>(request.bytes)};
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    LAYUP_ASSERT(entry != nullptr);
    const auto offset = static_cast<std::uint64_t>(request.offset);
    if (direction_ == IoDirection::write)
      io_uring_prep_writev(entry, file_, &vectors_[slot], 1, offset);
    else
      io_uring_prep_readv(entry, file_, &vectors_[slot], 1, offset);
    entry->user_data = slot;
    int result = 0;
    do {
      result = io_uring_submit(&ring_);
    } while (result == -EINTR || result == -EAGAIN || result == -EBUSY);
    LAYUP_ASSERT(result == 1);
  }

  int file_;
  IoDirection direction_;
  io_uring ring_{};
  bool is_open_ = false;
  std::array<IoRequest, kDepth> requests_{};
  std::array<iovec, kDepth> vectors_{};
};

}  // namespace

bool has_uring() { return true; }

std::unique_ptr<IoQueue> make_uring_queue(int file, IoDirection direction, std::string& refusal) {
  auto queue = std::make_unique<UringQueue>(file, direction);
  const int code = queue->open();
  if (code == 0) return queue;
  refusal = std::string(std::strerror(code)) + " (errno " + std::to_string(code) + ")";
  return nullptr;
}

}  // namespace layup
