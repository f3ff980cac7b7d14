// SPDX-License-Identifier: Apache-2.0
// Sums in double with a fixed order of additions: eight lanes, added pairwise at the end. The
// result depends on the data alone, and the compiler can use vectors for the lanes.
#pragma once

#include <cstdint>

namespace layup {

class LaneSum {
 public:
  // Adds term(i) for i in [0, count).
  template <typename Term>
  void add(std::int64_t count, const Term& term) {
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      for (int lane = 0; lane < kLanes; ++lane) lanes_[lane] += term(i + lane);
    for (int lane = 0; i < count; ++i, ++lane) lanes_[lane] += term(i);
  }

  double total() const {
    return ((lanes_[0] + lanes_[1]) + (lanes_[2] + lanes_[3])) +
           ((lanes_[4] + lanes_[5]) + (lanes_[6] + lanes_[7]));
  }

 private:
  static constexpr int kLanes = 8;
  double lanes_[kLanes] = {};
};

}  // namespace layup
