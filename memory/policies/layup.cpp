// SPDX-License-Identifier: Apache-2.0
// `layup`: each value that backward reads is offloaded or recomputed, whichever costs less.
//
// Source: Jiang et al. 2019, "Layup: Layer-adaptive and multi-type intermediate-oriented memory
// optimization for GPU-based CNNs", TACO 16(4), doi:10.1145/3357238. Known of it: layers whose
// transfer costs less than their recompute (compute-sensitive) are offloaded and prefetched, the
// others (transfer-sensitive) recomputed; transfers are pipelined; gradients live in a sliding
// window; one workspace serves all layers.
//
// Our reading, where the abstract leaves it open:
//   - costs decide, not a table of layer types: the transfer of a value one way against the forward
//     time of the chain that would make it again, from its nearest ancestors that are not
//     recomputed;
//   - values are taken in the order of forward, so that a chain which has become dearer than a copy
//     ends there;
//   - with a budget the tail of the network stays resident;
//   - parameters are updated inside backward, which the published system did not do.
// Variants of this rule are planned, and the shortest predicted step is taken: values that several
// layers read are offloaded whatever they cost (short chains); whatever the link carries
// beside the computation is offloaded, unless a copy takes more from it than a recompute would;
// what is cheap to make again is, and everything else stays (where the link is the bottleneck);
// what costs least for each byte goes first, so that there are no more copies than the budget asks
// for (where they take time from kernels); two of these, and all offloaded, with values that leave
// again between their uses in backward (the least working set); and, where there is no host memory,
// segments that are recomputed from kept values.
#include <algorithm>
#include <cmath>

#include "memory/policy.h"

namespace layup {
namespace {

constexpr int kNumLevels = 65;
constexpr double kLargestPart = 4;  // of recompute over transfer
enum Variant : int {
  by_cost,
  forks_offloaded,
  hidden_offloaded,
  cheap_recomputed,
  head_recomputed,
  cheapest_dropped,
  recompute_only,
  all_offloaded,
  by_cost_dropping,
  forks_offloaded_dropping,
  all_offloaded_dropping,
  num_variants
};

bool is_fork(const PolicyInput& input, const std::vector<int>& num_readers, ValueId value) {
  return input.graph.value(value).kind != ValueKind::saved && num_readers[index(value)] > 1;
}

// Without a host tier (or with a small one), what would be offloaded beyond it stays: the later
// half of the network first, since it stays for a shorter time.
void respect_host_budget(const PolicyInput& input, Decisions& decisions) {
  if (!input.host_budget_bytes) return;
  std::int64_t left = *input.host_budget_bytes;
  for (const ValueId value : input.uses.candidates) {
    Retention& retention = decisions.retention[index(value)];
    if (retention != Retention::offload) continue;
    left -= input.graph.value(value).bytes;
    if (left < 0) retention = Retention::keep;
  }
}

// The link in forward: how far behind the computation its queue of copies is.
struct Link {
  double free_ms = 0;  // when it has done what it was given

  // A copy is hidden when the queue before it is not much longer than itself.
  bool would_hide(double now_ms, double transfer_ms) const {
    constexpr double kPatience = 6;
    return free_ms <= now_ms + kPatience * transfer_ms;
  }
  void give(double now_ms, double transfer_ms) {
    free_ms = std::max(free_ms, now_ms) + transfer_ms;
  }
};

// Forward time to make values again from what is not recomputed.
class Chains {
 public:
  explicit Chains(const PolicyInput& input) : input_(input), ms_(input.graph.values.size(), 0) {}

  double cost_ms(ValueId value) const {
    if (input_.uses.at(value).replay < 0) return 0;
    const auto replay = static_cast<std::size_t>(input_.uses.at(value).replay);
    double ms = input_.cost.replay_ms[replay];
    for (const ValueId read : input_.graph.replays[replay].reads) ms += ms_[index(read)];
    return ms;
  }
  // The value is recomputed, or a link: chains go on through it.
  void note(ValueId value, double ms) { ms_[index(value)] = ms; }

 private:
  const PolicyInput& input_;
  std::vector<double> ms_;  // by value; 0 for what stays or comes back
};

Retention choose(const PolicyInput& input, ValueId value, Variant variant, double chain_ms,
                 bool fork, double now_ms, const Link& link) {
  const bool forks_go = variant == forks_offloaded || variant == forks_offloaded_dropping;
  const double transfer_ms = input.cost.offload_ms(input.graph.value(value).bytes);
  if (input.uses.at(value).replay < 0 || (forks_go && fork) || variant == all_offloaded ||
      variant == all_offloaded_dropping)
    return Retention::offload;
  const bool goes_beside = (variant == hidden_offloaded || variant == cheapest_dropped) &&
                           input.host_budget_bytes.value_or(1) > 0;
  if (goes_beside && link.would_hide(now_ms, transfer_ms))
    return chain_ms < input.cost.load_ms(input.graph.value(value).bytes) ? Retention::recompute
                                                                         : Retention::offload;
  return chain_ms < transfer_ms ? Retention::recompute : Retention::offload;
}

// Fills `recompute_ms` too: by value, what its chain costs.
void classify(const PolicyInput& input, Variant variant, Decisions& decisions,
              std::vector<double>& recompute_ms) {
  const std::vector<int> num_readers = count_forward_readers(input);
  Chains chains(input);
  double now_ms = 0;
  Link link;
  for (std::int32_t i = 0; i < input.uses.first_backward; ++i) {
    now_ms += input.cost.run_ms[static_cast<std::size_t>(i)];
    for (const ValueId value : input.graph.operations[static_cast<std::size_t>(i)].writes) {
      const ValueUse& use = input.uses.at(value);
      if (use.producer != i) continue;  // persistent
      const double cost_ms = chains.cost_ms(value);
      if (use.num_backward_uses == 0) {  // a link of chains
        chains.note(value, cost_ms);
        continue;
      }
      if (is_small(input, value)) continue;
      Retention& retention = decisions.retention[index(value)];
      retention =
          choose(input, value, variant, cost_ms, is_fork(input, num_readers, value), now_ms, link);
      recompute_ms[index(value)] = cost_ms;
      if (retention == Retention::recompute) chains.note(value, cost_ms);
      if (retention == Retention::offload)
        link.give(now_ms, input.cost.offload_ms(input.graph.value(value).bytes));
    }
  }
}

// Keeps as many bytes as the level says: first what costs most for each byte to be without, then
// what is made last.
void keep_dearest(const PolicyInput& input, int level, const std::vector<double>& recompute_ms,
                  Decisions& decisions) {
  struct Dropped {
    ValueId value;
    float price;  // so that equal ones are equal
  };
  std::vector<Dropped> order;
  double total = 0;
  for (const ValueId value : input.uses.candidates) {
    const auto bytes = static_cast<double>(input.graph.value(value).bytes);
    total += bytes;
    const Retention retention = decisions.retention[index(value)];
    if (retention == Retention::keep) continue;
    const double ms = retention == Retention::recompute
                          ? recompute_ms[index(value)]
                          : input.cost.load_ms(input.graph.value(value).bytes);
    order.push_back({value, static_cast<float>(ms / bytes)});
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Dropped& a, const Dropped& b) { return a.price < b.price; });
  double kept = 0;
  for (auto dropped = order.rbegin(); dropped != order.rend(); ++dropped) {
    kept += static_cast<double>(input.graph.value(dropped->value).bytes);
    if (kept > total * level / (kNumLevels - 1)) return;
    decisions.retention[index(dropped->value)] = Retention::keep;
  }
}

// Without transfers: what is made again in less than `part` of the time of its transfer is, the
// rest stays.
void recompute_cheap(const PolicyInput& input, double part, Decisions& decisions) {
  Chains chains(input);
  for (std::int32_t i = 0; i < input.uses.first_backward; ++i)
    for (const ValueId value : input.graph.operations[static_cast<std::size_t>(i)].writes) {
      const ValueUse& use = input.uses.at(value);
      if (use.producer != i) continue;
      const double chain_ms = chains.cost_ms(value);
      const bool is_link = use.num_backward_uses == 0;
      const bool is_cheap = use.replay >= 0 && !is_small(input, value) &&
                            chain_ms < part * input.cost.offload_ms(input.graph.value(value).bytes);
      if (is_link || is_cheap) chains.note(value, chain_ms);
      if (!is_link && is_cheap) decisions.retention[index(value)] = Retention::recompute;
    }
}

// Forks at about every sqrt(n)-th layer stay; what lies between is recomputed.
void recompute_segments(const PolicyInput& input, Decisions& decisions) {
  const std::vector<int> num_readers = count_forward_readers(input);
  std::int64_t total = 0;
  std::int64_t num_anchors = 0;
  for (const ValueId value : input.uses.candidates) {
    total += input.graph.value(value).bytes;
    num_anchors += is_fork(input, num_readers, value) ? 1 : 0;
  }
  const bool has_forks = num_anchors > 2;
  const double segment =
      static_cast<double>(total) /
      std::max(2.0, std::sqrt(static_cast<double>(input.uses.candidates.size())));
  double since = 0;
  for (const ValueId value : input.uses.candidates) {
    since += static_cast<double>(input.graph.value(value).bytes);
    if (input.uses.at(value).replay < 0 || is_small(input, value)) continue;
    const bool anchor = since >= segment && (!has_forks || is_fork(input, num_readers, value));
    if (anchor) since = 0;
    decisions.retention[index(value)] = anchor ? Retention::keep : Retention::recompute;
  }
}

Decisions decide(const PolicyInput& input, int variant, int level) {
  Decisions decisions;
  decisions.retention = keep_candidates(input);
  decisions.drop_between_uses = variant >= by_cost_dropping;
  std::vector<double> recompute_ms(input.graph.values.size(), 0);
  if (variant == cheap_recomputed) {  // less and less of it
    recompute_cheap(input, kLargestPart * (kNumLevels - 1 - level) / (kNumLevels - 1), decisions);
    return decisions;
  }
  if (variant == head_recomputed)
    recompute_cheap(input, kLargestPart / 2, decisions);
  else if (variant == recompute_only)
    recompute_segments(input, decisions);
  else
    classify(input, static_cast<Variant>(variant), decisions, recompute_ms);
  respect_host_budget(input, decisions);
  if (variant == cheapest_dropped)
    keep_dearest(input, level, recompute_ms, decisions);
  else
    keep_tail(input, level, kNumLevels, decisions);
  return decisions;
}

}  // namespace

Policy layup_policy() {
  Policy policy;
  policy.name = "layup";
  policy.summary = "offloaded or recomputed, whichever costs less";
  policy.num_variants = Variant::num_variants;
  policy.num_levels = kNumLevels;
  policy.first_tight_variant = recompute_only;
  policy.decide = decide;
  return policy;
}

}  // namespace layup
