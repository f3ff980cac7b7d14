// SPDX-License-Identifier: Apache-2.0
#include "engine/device/counted_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "engine/error.h"
#include "engine/shape.h"

namespace layup {
namespace {

// An empty block still needs an address of its own.
std::size_t mapped_length(std::int64_t bytes) {
  return static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
}

}  // namespace

CountedMemory::~CountedMemory() {
  for (const auto& [memory, bytes] : blocks_) munmap(memory, mapped_length(bytes));
}

void* CountedMemory::allocate(std::int64_t bytes, const char* purpose) {
  const std::size_t length = mapped_length(bytes);
  void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw DeviceError("the system has no " + format_bytes(bytes) + " of memory for " + purpose +
                      " (" + std::strerror(errno) + "); lower the batch size or give a --budget");
  madvise(memory, length, MADV_HUGEPAGE);  // a hint; without it all is right but slower
  blocks_.emplace(memory, bytes);
  counters_.live_bytes += bytes;
  counters_.peak_bytes = std::max(counters_.peak_bytes, counters_.live_bytes);
  ++counters_.num_allocations;
  return memory;
}

void CountedMemory::release(void* memory) {
  const auto found = blocks_.find(memory);
  LAYUP_ASSERT(found != blocks_.end());
  munmap(memory, mapped_length(found->second));
  counters_.live_bytes -= found->second;
  blocks_.erase(found);
}

}  // namespace layup
