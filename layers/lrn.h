// SPDX-License-Identifier: Apache-2.0
// The numbers of lrn, for its kernels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/json_reader.h"

namespace layup {

struct LrnParams {
  std::int64_t size = 5;
  double alpha = 1e-4;
  double beta = 0.75;
  double k = 1;

  // Channel c sums over [c - before(), c + after()], and is summed by [c - after(), c + before()].
  std::int64_t before() const { return size / 2; }
  std::int64_t after() const { return (size - 1) / 2; }
  double share() const { return alpha / static_cast<double>(size); }  // of one square
};

// "size" (required), "alpha" (1e-4), "beta" (0.75), "k" (1).
LrnParams read_lrn_params(JsonReader& params);

}  // namespace layup
