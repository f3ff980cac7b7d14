// SPDX-License-Identifier: Apache-2.0
#include "data/epoch_order.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

namespace layup {
namespace {

std::vector<std::int64_t> order_of(const EpochOrder& order, std::int64_t count,
                                   std::int64_t epoch) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    samples[static_cast<std::size_t>(i)] = order.sample_at(epoch, i);
  return samples;
}

TEST_CASE("an epoch visits every sample once") {
  std::vector<std::int64_t> counts(200);
  std::iota(counts.begin(), counts.end(), 1);
  for (const std::int64_t count : {255, 256, 257, 1023, 1024, 1025, 65536, 65537, 60000})
    counts.push_back(count);
  for (const std::int64_t count : counts) {
    auto samples = order_of(EpochOrder(count, 7, true), count, 3);
    std::sort(samples.begin(), samples.end());
    bool is_permutation = true;
    for (std::int64_t i = 0; i < count; ++i)
      is_permutation = is_permutation && samples[static_cast<std::size_t>(i)] == i;
    CHECK_MESSAGE(is_permutation, count);
  }
}

TEST_CASE("orders differ by epoch and seed, and are the identity without shuffling") {
  const auto order = order_of(EpochOrder(1000, 1, true), 1000, 0);
  CHECK(order == order_of(EpochOrder(1000, 1, true), 1000, 0));
  const auto fixed_points = [&](const std::vector<std::int64_t>& other) {
    std::int64_t count = 0;
    for (std::size_t i = 0; i < 1000; ++i) count += order[i] == other[i] ? 1 : 0;
    return count;
  };
  // Two independent permutations agree in one place on average.
  CHECK(fixed_points(order_of(EpochOrder(1000, 1, true), 1000, 1)) < 9);
  CHECK(fixed_points(order_of(EpochOrder(1000, 2, true), 1000, 0)) < 9);
  std::vector<std::int64_t> identity(1000);
  std::iota(identity.begin(), identity.end(), 0);
  CHECK(fixed_points(identity) < 9);
  CHECK(order_of(EpochOrder(1000, 1, false), 1000, 5) == identity);
}

TEST_CASE("orders are even: every order of five, every place of ten, no drift along the epoch") {
  std::map<std::vector<std::int64_t>, std::int64_t> seen;
  const EpochOrder five(5, 3, true);
  for (std::int64_t epoch = 0; epoch < 24000; ++epoch) ++seen[order_of(five, 5, epoch)];
  CHECK(seen.size() == 120);
  // 200 each; chi-squared with 119 degrees of freedom stays below 119 + 5 * sqrt(2 * 119).
  double chi_squared = 0;
  for (const auto& [order, count] : seen)
    chi_squared += std::pow(static_cast<double>(count) - 200, 2) / 200;
  CHECK(chi_squared < 119 + 5 * std::sqrt(2.0 * 119));

  std::vector<std::int64_t> places(100);
  const EpochOrder ten(10, 3, true);
  for (std::int64_t epoch = 0; epoch < 10000; ++epoch)
    for (std::int64_t i = 0; i < 10; ++i)
      ++places[static_cast<std::size_t>(10 * i + ten.sample_at(epoch, i))];
  for (const std::int64_t count : places) CHECK(std::abs(count - 1000) < 150);

  // Correlation of neighbours and of place with sample, over a large epoch: about 1/sqrt(n).
  const EpochOrder large(60000, 3, true);
  double place_sum = 0;
  double neighbour_sum = 0;
  for (std::int64_t i = 0; i + 1 < 60000; ++i) {
    const double here = static_cast<double>(large.sample_at(0, i)) / 60000 - 0.5;
    const double next = static_cast<double>(large.sample_at(0, i + 1)) / 60000 - 0.5;
    place_sum += here * (static_cast<double>(i) / 60000 - 0.5);
    neighbour_sum += here * next;
  }
  CHECK(std::abs(place_sum / 60000 * 12) < 5 / std::sqrt(60000.0));
  CHECK(std::abs(neighbour_sum / 60000 * 12) < 5 / std::sqrt(60000.0));
}

}  // namespace
}  // namespace layup
