// SPDX-License-Identifier: Apache-2.0
#include "engine/allocation_counter.h"

#include <atomic>

namespace layup::allocation_counter {
namespace {

// Constant-initialised: malloc is called before main.
constinit std::atomic<bool> is_counting{false};
constinit std::atomic<std::int64_t> num_allocations{0};
constinit std::atomic<std::int64_t> num_bytes{0};

}  // namespace

void note(std::size_t bytes) noexcept {
  if (!is_counting.load(std::memory_order_relaxed)) return;
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  num_bytes.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
}

void start() noexcept {
  num_allocations.store(0, std::memory_order_relaxed);
  num_bytes.store(0, std::memory_order_relaxed);
  is_counting.store(true, std::memory_order_seq_cst);
}

Counts stop() noexcept {
  is_counting.store(false, std::memory_order_seq_cst);
  return {num_allocations.load(std::memory_order_relaxed),
          num_bytes.load(std::memory_order_relaxed)};
}

}  // namespace layup::allocation_counter
