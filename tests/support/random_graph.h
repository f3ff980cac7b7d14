// SPDX-License-Identifier: Apache-2.0
// Random networks of the built layers: branches, long skips, shared inputs, the same input twice,
// chains that may be in place.
#pragma once

#include <cstdint>
#include <string>

#include "memory/policy.h"

namespace layup::test {

// A pure function of seed and position, so that a failing case can be repeated from its printed
// seed.
class RandomSource {
 public:
  explicit RandomSource(std::uint64_t seed) : seed_(seed) {}
  std::uint64_t bits();
  std::int64_t below(std::int64_t limit);  // 0 ... limit-1
  bool chance(int percent) { return below(100) < percent; }

 private:
  std::uint64_t seed_;
  std::uint64_t position_ = 0;
};

// The text of a network file for 2x8x8 samples and 4 classes, with about `num_layers` layers before
// the classifier. It can be trained with two samples or more.
std::string random_network(std::uint64_t seed, int num_layers);

// Whatever is legal: what forward makes is kept, offloaded or, if there is a way, computed again,
// links of chains too; copies in either style, updates inside backward or after it.
Decisions random_decisions(const PhysicalGraph& graph, const ValueUses& uses, RandomSource& random);

}  // namespace layup::test
