// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include "tests/support/bit_equality.h"

namespace layup::test {

// The bits of another run, and what the plan promised.
inline void check_outcome(const Outcome& outcome, const Outcome& expected) {
  CHECK(outcome.hash == expected.hash);
  CHECK(outcome.loss == expected.loss);
  CHECK(outcome.measured_bytes == outcome.planned_bytes);
  CHECK(outcome.measured_host_bytes == outcome.host_bytes);
  CHECK(outcome.allocations_after_start == 0);
}

}  // namespace layup::test
