// SPDX-License-Identifier: Apache-2.0
// Replaces the heap's entry points by ones that report to the allocation counter and go on to
// glibc's own; inside a library call the call pool serves first. Linked into executables only, and
// not into sanitizer builds (they replace malloc themselves).
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "engine/allocation_counter.h"
#include "engine/call_pool.h"

namespace {

using namespace layup;

constexpr std::size_t kDefaultAlignment = alignof(std::max_align_t);

}  // namespace

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);

void* malloc(std::size_t bytes) {
  if (void* pooled = call_pool::take(bytes, kDefaultAlignment)) return pooled;
  allocation_counter::note(bytes);
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  std::size_t total = 0;
  if (!__builtin_mul_overflow(count, bytes, &total))
    if (void* pooled = call_pool::take(total, kDefaultAlignment))
      return std::memset(pooled, 0, total);
  allocation_counter::note(count * bytes);
  return __libc_calloc(count, bytes);
}
void free(void* memory) {
  if (call_pool::owns(memory))
    call_pool::give_back(memory);
  else
    __libc_free(memory);
}
void* realloc(void* memory, std::size_t bytes) {
  if (call_pool::owns(memory)) {
    void* const moved = malloc(bytes);
    const std::size_t old_bytes = call_pool::size_of(memory);
    if (moved != nullptr) {
      std::memcpy(moved, memory, old_bytes < bytes ? old_bytes : bytes);
      free(memory);
    }
    return moved;
  }
  allocation_counter::note(bytes);
  return __libc_realloc(memory, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  if (void* pooled = call_pool::take(bytes, alignment)) return pooled;
  allocation_counter::note(bytes);
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
