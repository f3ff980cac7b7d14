// SPDX-License-Identifier: Apache-2.0
// Counts calls of malloc and its relatives in the whole process, by taking their place. For the
// few tests that ask; linked into those only.
#pragma once

#include <cstdint>

namespace layup {

// False under sanitizers, which take the same place: the count then stays 0.
bool counts_allocations();
std::int64_t num_allocations();

}  // namespace layup
