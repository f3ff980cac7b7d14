// SPDX-License-Identifier: Apache-2.0
#include "data/epoch_order.h"

#include "engine/error.h"
#include "engine/rng.h"

namespace layup {
namespace {

// Four give a pseudo-random permutation of a large domain (Luby and Rackoff 1988, SIAM J. Comput.
// 17:2); small domains need more to be even.
constexpr std::uint64_t kRounds = 8;

}  // namespace

EpochOrder::EpochOrder(std::int64_t num_samples, std::uint64_t seed, bool shuffle)
    : num_samples_(static_cast<std::uint64_t>(num_samples)),
      key_(mix(seed ^ fnv1a("epoch order"))),
      shuffle_(shuffle) {
  LAYUP_ASSERT(num_samples >= 1 && num_samples <= std::int64_t{1} << 60);
  while (std::uint64_t{1} << 2 * half_bits_ < num_samples_) ++half_bits_;
}

// A Feistel network permutes the 2 * half_bits wide numbers; following it until it lands below
// num_samples permutes those ("cycle walking": Black and Rogaway, CT-RSA 2002). From 65 samples on
// the domain is less than four times as large, so that takes less than four trips on average.
std::int64_t EpochOrder::sample_at(std::int64_t epoch, std::int64_t position) const {
  LAYUP_ASSERT(position >= 0 && static_cast<std::uint64_t>(position) < num_samples_);
  if (!shuffle_) return position;
  const std::uint64_t epoch_key = mix(key_ + static_cast<std::uint64_t>(epoch));
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(position);
  do {
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t next = left ^ (mix(epoch_key ^ (round << 60U) ^ right) >> 32U & mask);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= num_samples_);
  return static_cast<std::int64_t>(value);
}

}  // namespace layup
