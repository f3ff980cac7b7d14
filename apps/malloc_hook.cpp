// SPDX-License-Identifier: Apache-2.0
// Replaces the heap's entry points by ones that report to the allocation counter and go on to
// glibc's own. Linked into executables only, and not into sanitizer builds (they replace malloc
// themselves).
#include <cerrno>
#include <cstddef>

#include "engine/allocation_counter.h"

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t bytes) {
  layup::allocation_counter::note(bytes);
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  layup::allocation_counter::note(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  layup::allocation_counter::note(bytes);
  return __libc_realloc(memory, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  layup::allocation_counter::note(bytes);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  void* const found = memalign(alignment, bytes);
  if (found == nullptr) return ENOMEM;
  *memory = found;
  return 0;
}
}
