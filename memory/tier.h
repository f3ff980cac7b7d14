// SPDX-License-Identifier: Apache-2.0
// Where an offloaded value waits. Both tiers are used by the same actions and instructions; they
// differ in what a copy costs and in alignment.
#pragma once

#include <cstdint>

namespace layup {

enum class Tier : std::uint8_t { host, file };

}  // namespace layup
