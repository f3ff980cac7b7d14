// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <unordered_map>

namespace layup {

struct MemoryCounters {
  std::int64_t live_bytes = 0;  // obtained and not given back
  std::int64_t peak_bytes = 0;
  std::int64_t num_allocations = 0;
};

// Anonymous memory straight from the system, page-aligned, with huge pages where there are any.
// Counts what is asked of the system; knows nothing of plans.
class CountedMemory {
 public:
  CountedMemory() = default;
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;
  ~CountedMemory();

  // Contents are undefined, pages not there yet. Throws DeviceError naming the bytes and `purpose`.
  void* allocate(std::int64_t bytes, const char* purpose);
  void release(void* memory);
  const MemoryCounters& counters() const { return counters_; }

 private:
  std::unordered_map<void*, std::int64_t> blocks_;
  MemoryCounters counters_;
};

}  // namespace layup
