// SPDX-License-Identifier: Apache-2.0
#include "memory/schedule.h"

#include <algorithm>

#include "engine/error.h"
#include "memory/finish_plan.h"

namespace layup {
namespace {

// A copy of a value out (the first time) and back. Boundaries are positions in the compute order:
// boundary b comes before compute action b.
struct Copy {
  ValueId value{};
  Tier tier = Tier::host;
  bool goes_out = true;
  std::int32_t offload = 0;  // boundary at which it is issued
  std::int32_t wait_offload = 0;
  std::int32_t prefetch = 0;
  std::int32_t wait_prefetch = 0;
};

// Copies of the same direction run one after the other: issue in the order of the boundaries.
std::vector<Action> merge(const ComputeOrder& order, const std::vector<Copy>& copies) {
  const std::size_t num_boundaries = order.actions.size() + 1;
  struct Extra {
    std::int32_t boundary;
    ActionKind kind;
    ValueId value;
    Tier tier = Tier::host;
  };
  // At one boundary: what was just made goes out (and may be waited for at once, if nobody reads it
  // in forward), bytes come free, copies take them, compute waits for what it needs.
  const auto rank = [](ActionKind kind) {
    switch (kind) {
      case ActionKind::offload: return 0;
      case ActionKind::wait_offload: return 1;
      case ActionKind::prefetch: return 2;
      default: return 3;
    }
  };
  std::vector<Extra> extras;
  for (const Copy& copy : copies) {
    if (copy.goes_out) {
      extras.push_back({copy.offload, ActionKind::offload, copy.value, copy.tier});
      extras.push_back({copy.wait_offload, ActionKind::wait_offload, copy.value});
    }
    extras.push_back({copy.prefetch, ActionKind::prefetch, copy.value, copy.tier});
    extras.push_back({copy.wait_prefetch, ActionKind::wait_prefetch, copy.value});
  }
  std::stable_sort(extras.begin(), extras.end(), [&](const Extra& a, const Extra& b) {
    return a.boundary != b.boundary ? a.boundary < b.boundary : rank(a.kind) < rank(b.kind);
  });
  std::vector<Action> actions;
  actions.reserve(order.actions.size() + extras.size());
  auto extra = extras.begin();
  for (std::size_t boundary = 0; boundary < num_boundaries; ++boundary) {
    for (; extra != extras.end() && extra->boundary == static_cast<std::int32_t>(boundary); ++extra)
      actions.push_back({extra->kind, 0, extra->value, extra->tier});
    if (boundary < order.actions.size()) actions.push_back(order.actions[boundary]);
  }
  return actions;
}

// The least memory: an offload is waited for right after the last use in forward, a prefetch issued
// right before the first use in backward.
std::vector<Copy> tight_copies(const ComputeOrder& order, const std::vector<Tier>& tiers) {
  std::vector<Copy> copies;
  for (const OffloadSpan& span : order.offloads)
    copies.push_back({span.value, tiers[index(span.value)], span.number == 0, span.made_at + 1,
                      span.last_used_at + 1, span.needed_at, span.needed_at});
  return copies;
}

// Gives copies the time that they need, as far as the live bytes stay within a part of the peak
// that the tight plan has anyway.
class Gate {
 public:
  Gate(const PhysicalGraph& graph, const CostModel& cost, const DraftSchedule& draft, double fill)
      : graph_(graph),
        cost_(cost),
        copies_(tight_copies(draft.order, draft.tiers)),
        live_(draft.live_bytes),
        limit_(static_cast<std::int64_t>(static_cast<double>(draft.peak_bytes) * fill)) {
    start_ms_.push_back(0);
    for (const Action& action : draft.order.actions)
      start_ms_.push_back(start_ms_.back() + duration_ms(action));
  }

  std::vector<Copy> relax() {
    relax_prefetches();
    relax_offloads();
    return copies_;
  }

 private:
  double duration_ms(const Action& action) const {
    return action.kind == ActionKind::run ? cost_.run_ms[action.operation]
                                          : cost_.replay_ms[action.operation];
  }

  // In the order of need, the last first: when each would have to start to be there in time.
  void relax_prefetches() {
    std::vector<std::size_t> by_need(copies_.size());
    for (std::size_t i = 0; i < by_need.size(); ++i) by_need[i] = i;
    std::stable_sort(by_need.begin(), by_need.end(), [&](std::size_t a, std::size_t b) {
      return copies_[a].wait_prefetch < copies_[b].wait_prefetch;
    });
    std::vector<std::int32_t> wanted(copies_.size());
    double next_start = start_ms_.back();
    for (std::size_t i = by_need.size(); i-- > 0;) {
      const Copy& copy = copies_[by_need[i]];
      const double end =
          std::min(next_start, start_ms_[static_cast<std::size_t>(copy.wait_prefetch)]);
      next_start = end - kSafety * cost_.prefetch_ms(graph_.value(copy.value).bytes, copy.tier);
      const auto after = std::upper_bound(start_ms_.begin(), start_ms_.end(), next_start);
      wanted[by_need[i]] =
          static_cast<std::int32_t>(std::max<std::ptrdiff_t>(0, after - start_ms_.begin() - 1));
    }
    std::int32_t previous = 0;  // one direction, one queue: never before an earlier one
    for (const std::size_t i : by_need) {
      Copy& copy = copies_[i];
      const std::int64_t bytes = graph_.value(copy.value).bytes;
      const std::int32_t earliest = std::max({wanted[i], previous, copy.wait_offload});
      while (copy.prefetch > earliest && fits(copy.prefetch - 1, bytes)) {
        --copy.prefetch;
        live_[static_cast<std::size_t>(copy.prefetch)] += bytes;
      }
      previous = copy.prefetch;
    }
  }

  void relax_offloads() {
    double queue_end = 0;
    for (Copy& copy : copies_) {  // in the order in which values are made
      if (!copy.goes_out) continue;
      const std::int64_t bytes = graph_.value(copy.value).bytes;
      queue_end = std::max(queue_end, start_ms_[static_cast<std::size_t>(copy.offload)]) +
                  cost_.offload_ms(bytes, copy.tier);
      while (copy.wait_offload < copy.prefetch &&
             start_ms_[static_cast<std::size_t>(copy.wait_offload)] < queue_end &&
             fits(copy.wait_offload, bytes)) {
        live_[static_cast<std::size_t>(copy.wait_offload)] += bytes;
        ++copy.wait_offload;
      }
    }
  }

  bool fits(std::int32_t at, std::int64_t bytes) const {
    return live_[static_cast<std::size_t>(at)] + bytes <= limit_;
  }

  static constexpr double kSafety = 1.15;  // predictions are not perfect

  const PhysicalGraph& graph_;
  const CostModel& cost_;
  std::vector<Copy> copies_;
  std::vector<std::int64_t> live_;  // by compute action
  std::int64_t limit_;
  std::vector<double> start_ms_;  // by boundary, without stalls
};

// vDNN: the offload of a layer's input runs beside that layer's forward, and the prefetch of the
// next one beside a layer's backward; both streams meet at the end of the layer.
std::vector<Copy> layer_by_layer_copies(const PhysicalGraph& graph, const DraftSchedule& draft,
                                        int look_ahead) {
  const ComputeOrder& order = draft.order;
  const auto node_at = [&](std::int32_t at) {
    return operation_of(graph, order.actions[static_cast<std::size_t>(at)]).node;
  };
  std::vector<Copy> copies = tight_copies(order, draft.tiers);
  for (Copy& copy : copies) {
    copy.offload = std::max(copy.offload, copy.wait_offload - 1);  // with its last reader
    // The layers before in the order of backward: prefetch at the start of the first of them.
    for (int layer = 0; layer < look_ahead && copy.prefetch > copy.wait_offload; ++layer) {
      std::int32_t begin = copy.prefetch - 1;
      const NodeId node = node_at(begin);
      while (begin > copy.wait_offload && node_at(begin - 1) == node) --begin;
      copy.prefetch = begin;
    }
  }
  return copies;
}

// Fills tiers and host_bytes.
void choose_tiers(const PhysicalGraph& graph, std::optional<std::int64_t> host_bytes_before_file,
                  DraftSchedule& draft) {
  draft.tiers.assign(graph.values.size(), Tier::host);
  const std::vector<OffloadSpan>& spans = draft.order.offloads;
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
    if (span->number != 0) continue;
    const std::int64_t bytes = graph.value(span->value).bytes;
    if (host_bytes_before_file && draft.host_bytes + bytes > *host_bytes_before_file)
      draft.tiers[index(span->value)] = Tier::file;
    else
      draft.host_bytes += bytes;
  }
}

}  // namespace

std::vector<std::int64_t> live_bytes(const std::vector<Residency>& residencies,
                                     std::size_t num_actions, const PhysicalGraph& graph) {
  std::vector<std::int64_t> live(num_actions + 1, 0);
  for (const Residency& stay : residencies) {
    if (stay.value != kWorkspace && is_persistent(graph.value(stay.value).kind)) continue;
    // What takes over another's bytes counts from the next action on.
    live[static_cast<std::size_t>(stay.begin + (stay.over >= 0 ? 1 : 0))] += stay.bytes;
    live[static_cast<std::size_t>(stay.end)] -= stay.bytes;
  }
  for (std::size_t i = 1; i < live.size(); ++i) live[i] += live[i - 1];
  live.resize(num_actions);
  return live;
}

DraftSchedule draft_schedule(const PhysicalGraph& graph, const ValueUses& uses,
                             const Decisions& decisions,
                             std::optional<std::int64_t> host_bytes_before_file) {
  DraftSchedule draft;
  draft.order = order_compute(graph, uses, decisions);
  choose_tiers(graph, host_bytes_before_file, draft);
  const std::vector<Action> actions = merge(draft.order, tight_copies(draft.order, draft.tiers));
  const std::vector<std::int64_t> live =
      live_bytes(lifetimes_of(graph, actions, decisions), actions.size(), graph);
  std::int64_t at_boundary = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    at_boundary = std::max(at_boundary, live[i]);
    draft.peak_bytes = std::max(draft.peak_bytes, live[i]);
    if (actions[i].kind != ActionKind::run && actions[i].kind != ActionKind::replay) continue;
    draft.live_bytes.push_back(at_boundary);
    at_boundary = 0;
  }
  return draft;
}

std::vector<Action> place_copies(const PhysicalGraph& graph, const CostModel& cost,
                                 const Decisions& decisions, const DraftSchedule& draft,
                                 double fill) {
  if (draft.order.offloads.empty()) return draft.order.actions;
  if (decisions.copy_style == CopyStyle::layer_by_layer)
    return merge(draft.order, layer_by_layer_copies(graph, draft, decisions.look_ahead));
  return merge(draft.order, Gate(graph, cost, draft, fill).relax());
}

}  // namespace layup
