// SPDX-License-Identifier: Apache-2.0
// Memory for what a library allocates inside one call and gives back before the call returns (its
// table of arguments, closures for its threads). The executables' malloc (apps/malloc_hook.cpp)
// serves such requests from a fixed block instead of the system's heap, so that a step takes
// nothing from it. What does not fit goes to the heap and is counted as usual.
#pragma once

#include <cstddef>

namespace layup::call_pool {

// While one lives, the calling thread's allocations come from its block.
class Scope {
 public:
  Scope() noexcept;
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope();
};

// The calling thread works for another one that has a scope (a team of OpenMP): from now on all its
// allocations come from its block.
void enter_for_good() noexcept;

// For the hook. Null: not inside a scope, or no room.
void* take(std::size_t bytes, std::size_t alignment) noexcept;
bool owns(const void* memory) noexcept;
void give_back(void* memory) noexcept;
// Of a block that was taken.
std::size_t size_of(const void* memory) noexcept;

}  // namespace layup::call_pool
