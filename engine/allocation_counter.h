// SPDX-License-Identifier: Apache-2.0
// Counts what the process takes from the system's heap while a step runs, whoever takes it: a
// kernel, a library, a runtime. The executables replace malloc with one that reports here
// (apps/malloc_hook.cpp); in a process without that hook the counts stay 0.
#pragma once

#include <cstddef>
#include <cstdint>

namespace layup::allocation_counter {

struct Counts {
  std::int64_t allocations = 0;
  std::int64_t bytes = 0;
};

// Called by the hook, from any thread. Counts only between start and stop.
void note(std::size_t bytes) noexcept;

// Not nested: one session runs at a time in a process that counts.
void start() noexcept;
Counts stop() noexcept;

}  // namespace layup::allocation_counter
