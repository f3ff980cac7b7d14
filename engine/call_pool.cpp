// SPDX-License-Identifier: Apache-2.0
#include "engine/call_pool.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <new>

namespace layup::call_pool {
namespace {

constexpr std::size_t kBlockBytes = 64 << 10;
constexpr std::size_t kNumBlocks = 64;  // threads in one process

// Before every piece. Pieces form a stack: the owner takes freed ones off the top.
struct alignas(16) Header {
  std::size_t bytes;
  std::size_t below;  // `top` before this piece was taken
  std::atomic<bool> is_free;
};
constexpr std::size_t kHeaderBytes = sizeof(Header);

Header* header_of(const void* memory) {
  return reinterpret_cast<Header*>(const_cast<std::byte*>(static_cast<const std::byte*>(memory)) -
                                   kHeaderBytes);
}

struct alignas(64) Block {
  std::byte bytes[kBlockBytes];
};

struct Owner {
  std::atomic<bool> is_owned{false};
  std::size_t top = 0;  // where the last piece begins; 0: none
};

constinit std::array<Block, kNumBlocks> blocks{};
constinit std::array<Owner, kNumBlocks> owners{};

// Initial-exec: no allocation when it is first touched from inside malloc.
#define LAYUP_THREAD_LOCAL constinit thread_local __attribute__((tls_model("initial-exec")))
LAYUP_THREAD_LOCAL Owner* own = nullptr;
LAYUP_THREAD_LOCAL int depth = 0;
#undef LAYUP_THREAD_LOCAL

void release(void* owner) { static_cast<Owner*>(owner)->is_owned.store(false); }

// Gives a thread's block back when the thread ends; what is still live in it stays there.
pthread_key_t at_thread_end() {
  static const pthread_key_t key = [] {
    pthread_key_t made{};
    pthread_key_create(&made, release);
    return made;
  }();
  return key;
}

void new_scope() noexcept {
  for (Owner& owner : owners) {
    if (own != nullptr) break;
    if (owner.is_owned.exchange(true)) continue;
    own = &owner;
    pthread_setspecific(at_thread_end(), own);
  }
  ++depth;
}

}  // namespace

void enter_for_good() noexcept {
  if (depth == 0) new_scope();
}

Scope::Scope() noexcept { new_scope(); }
Scope::~Scope() { --depth; }

void* take(std::size_t bytes, std::size_t alignment) noexcept {
  if (depth == 0 || own == nullptr) return nullptr;
  if (bytes > kBlockBytes || alignment > alignof(Block)) return nullptr;
  if (alignment < alignof(Header)) alignment = alignof(Header);
  std::byte* const block = blocks[static_cast<std::size_t>(own - owners.data())].bytes;
  std::size_t& top = own->top;
  while (top != 0 && header_of(block + top)->is_free.load(std::memory_order_acquire))
    top = header_of(block + top)->below;
  const std::size_t used = top == 0 ? 0 : top + header_of(block + top)->bytes;
  const std::size_t begin = (used + kHeaderBytes + alignment - 1) / alignment * alignment;
  if (begin + bytes > kBlockBytes) return nullptr;
  new (block + begin - kHeaderBytes) Header{bytes, top, false};
  top = begin;
  return block + begin;
}

bool owns(const void* memory) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  const auto begin = reinterpret_cast<std::uintptr_t>(blocks.data());
  return at >= begin && at < begin + sizeof(blocks);
}

void give_back(void* memory) noexcept {
  header_of(memory)->is_free.store(true, std::memory_order_release);
}

std::size_t size_of(const void* memory) noexcept { return header_of(memory)->bytes; }

}  // namespace layup::call_pool
