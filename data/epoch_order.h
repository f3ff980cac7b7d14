// SPDX-License-Identifier: Apache-2.0
// The order in which an epoch visits the samples: a permutation that is a pure function of (seed,
// epoch), without a table. Any position can be asked for at once, so that a run resumes in the
// middle of an epoch, and prefetching across the end of one, for free.
#pragma once

#include <cstdint>

namespace layup {

class EpochOrder {
 public:
  // Identity unless `shuffle`.
  EpochOrder(std::int64_t num_samples, std::uint64_t seed, bool shuffle);

  // The sample at `position` (both in [0, num_samples)).
  std::int64_t sample_at(std::int64_t epoch, std::int64_t position) const;

 private:
  std::uint64_t num_samples_;
  std::uint64_t key_;
  unsigned half_bits_ = 4;  // or more; below that some orders of a few samples are much rarer
  bool shuffle_;
};

}  // namespace layup
