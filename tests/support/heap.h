// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

#include "engine/allocation_counter.h"

namespace layup::test {

// False under sanitizers, which have a malloc of their own.
inline bool heap_is_counted() {
  allocation_counter::start();
  void* volatile block = std::malloc(16);
  std::free(block);
  return allocation_counter::stop().allocations == 1;
}

}  // namespace layup::test
