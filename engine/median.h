// SPDX-License-Identifier: Apache-2.0
// The middle of several measurements: one disturbed measurement does not move it.
#pragma once

#include <algorithm>
#include <vector>

namespace layup {

// Of an even number of values the upper of the two in the middle; 0 of none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace layup
