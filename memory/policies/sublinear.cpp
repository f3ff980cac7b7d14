// SPDX-License-Identifier: Apache-2.0
// `sublinear`: forward is cut into segments; what crosses a cut stays, everything else is computed
// again, segment by segment, in backward.
//
// Source: Chen, Xu, Zhang and Guestrin 2016, "Training deep nets with sublinear memory cost",
// arXiv:1604.06174, section 4: about sqrt(n) segments.
//
// Departures: cuts are put where the least bytes cross, within a third of a segment of the place
// that divides the bytes evenly; the number of segments is tried at some multiples of sqrt(n); with
// a budget the tail of the network stays, and the last segment always does.
#include <algorithm>
#include <array>
#include <cmath>

#include "memory/policy.h"

namespace layup {
namespace {

constexpr int kNumLevels = 33;
constexpr std::array<double, 5> kMultiples = {1, 0.5, 0.7, 1.4, 2};

// cut[i]: a segment begins before operation i.
std::vector<char> choose_cuts(const PolicyInput& input, std::int64_t num_segments) {
  const auto count = static_cast<std::size_t>(input.uses.first_backward);
  std::vector<std::int64_t> crossing(count + 1, 0);  // before each operation
  std::vector<std::int64_t> made(count + 1, 0);      // bytes of candidates made before it
  for (std::size_t i = 0; i < input.graph.values.size(); ++i) {
    const ValueUse& use = input.uses.of[i];
    if (use.producer < 0 || use.producer >= input.uses.first_backward) continue;
    const std::int64_t bytes = input.graph.values[i].bytes;
    crossing[static_cast<std::size_t>(use.producer) + 1] += bytes;
    crossing[static_cast<std::size_t>(use.last_forward_use) + 1] -= bytes;
    if (use.num_backward_uses > 0) made[static_cast<std::size_t>(use.producer) + 1] += bytes;
  }
  for (std::size_t i = 1; i <= count; ++i) {
    crossing[i] += crossing[i - 1];
    made[i] += made[i - 1];
  }
  std::vector<char> cut(count + 1, 0);
  const double segment = static_cast<double>(made[count]) / static_cast<double>(num_segments);
  for (std::int64_t number = 1; number < num_segments; ++number) {
    const auto position_of = [&](double bytes) {
      return static_cast<std::size_t>(
          std::lower_bound(made.begin(), made.end(), static_cast<std::int64_t>(bytes)) -
          made.begin());
    };
    const double target = segment * static_cast<double>(number);
    const std::size_t first = position_of(target - segment / 3);
    const std::size_t last = std::min(position_of(target + segment / 3), count);
    std::size_t best = first;
    for (std::size_t i = first; i <= last; ++i)
      if (crossing[i] < crossing[best]) best = i;
    cut[best] = 1;
  }
  return cut;
}

Decisions decide(const PolicyInput& input, int variant, int level) {
  const double root = std::sqrt(static_cast<double>(input.graph.num_layers));
  const auto num_segments =
      std::max<std::int64_t>(2, std::llround(root * kMultiples[static_cast<std::size_t>(variant)]));
  const std::vector<char> cut = choose_cuts(input, num_segments);
  std::vector<std::int32_t> segment_of(cut.size(), 0);
  for (std::size_t i = 1; i < cut.size(); ++i)
    segment_of[i] = segment_of[i - 1] + (cut[i] != 0 ? 1 : 0);
  const std::int32_t last_segment = segment_of.back();

  Decisions decisions;
  decisions.retention = keep_candidates(input);
  for (std::size_t i = 0; i < input.graph.values.size(); ++i) {
    const ValueUse& use = input.uses.of[i];
    if (use.replay < 0 || use.producer < 0 || use.producer >= input.uses.first_backward) continue;
    const std::int32_t made_in = segment_of[static_cast<std::size_t>(use.producer)];
    const bool crosses = segment_of[static_cast<std::size_t>(use.last_forward_use)] != made_in;
    const bool is_last = made_in == last_segment && use.num_backward_uses > 0;
    decisions.retention[i] = crosses || is_last ? Retention::keep : Retention::recompute;
  }
  keep_tail(input, level, kNumLevels, decisions);
  return decisions;
}

}  // namespace

Policy sublinear_policy() {
  Policy policy;
  policy.name = "sublinear";
  policy.summary = "about sqrt(n) segments, recomputed one at a time";
  policy.num_variants = static_cast<int>(kMultiples.size());
  policy.num_levels = kNumLevels;
  policy.decide = decide;
  return policy;
}

}  // namespace layup
