// SPDX-License-Identifier: Apache-2.0
#include "memory/compute_order.h"

#include <algorithm>

#include "engine/error.h"

namespace layup {
namespace {

// Where each update goes: after the operation that it has to wait for.
std::vector<std::uint32_t> operations_in_order(const PhysicalGraph& graph, bool inside_backward) {
  const std::size_t count = graph.operations.size();
  std::vector<std::vector<std::uint32_t>> updates_after(count);
  if (inside_backward) {
    std::vector<std::uint32_t> last_touch(graph.values.size(), 0);  // but for updates
    for (std::size_t i = 0; i < count; ++i) {
      const PhysicalOperation& op = graph.operations[i];
      if (op.kind == OpKind::update) continue;
      for (const auto* operands : {&op.reads, &op.writes})
        for (const ValueId value : *operands)
          last_touch[index(value)] = static_cast<std::uint32_t>(i);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const PhysicalOperation& op = graph.operations[i];
      if (op.kind != OpKind::update) continue;
      std::uint32_t after = last_touch[index(op.writes[0])];
      for (const ValueId value : op.reads) after = std::max(after, last_touch[index(value)]);
      updates_after[after].push_back(static_cast<std::uint32_t>(i));
    }
  }
  std::vector<std::uint32_t> order;
  order.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (!inside_backward || graph.operations[i].kind != OpKind::update)
      order.push_back(static_cast<std::uint32_t>(i));
    order.insert(order.end(), updates_after[i].begin(), updates_after[i].end());
  }
  return order;
}

class Orderer {
 public:
  Orderer(const PhysicalGraph& graph, const ValueUses& uses, const Decisions& decisions)
      : graph_(graph),
        uses_(uses),
        decisions_(decisions),
        is_resident_(graph.values.size(), 0),
        uses_left_(graph.values.size(), 0),
        is_needed_(graph.values.size(), 0),
        made_at_(graph.values.size(), -1),
        last_used_at_(graph.values.size(), -1),
        is_away_(graph.values.size(), 0),
        num_spans_(graph.values.size(), 0) {}

  ComputeOrder order() {
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      uses_left_[i] = uses_.of[i].num_backward_uses;
      if (is_persistent(graph_.values[i].kind)) is_resident_[i] = 1;
    }
    find_needed();
    const std::vector<std::uint32_t> sequence =
        operations_in_order(graph_, decisions_.updates_inside_backward);
    std::size_t at = 0;
    for (; at < sequence.size() && static_cast<std::int32_t>(sequence[at]) < uses_.first_backward;
         ++at)
      run_forward(sequence[at]);
    end_forward();
    for (; at < sequence.size(); ++at) {
      std::size_t next = at + 1;
      while (next < sequence.size() && graph_.operations[sequence[next]].kind == OpKind::update)
        ++next;
      run_backward(sequence[at],
                   next < sequence.size() ? &graph_.operations[sequence[next]] : nullptr);
    }
    std::stable_sort(result_.offloads.begin(), result_.offloads.end(),
                     [](const OffloadSpan& a, const OffloadSpan& b) {
                       return a.made_at != b.made_at ? a.made_at < b.made_at : a.number < b.number;
                     });
    return std::move(result_);
  }

 private:
  Retention retention(ValueId value) const { return decisions_.retention[index(value)]; }
  bool leaves_as_link(ValueId value) const {
    return !decisions_.leaves_as_link.empty() && decisions_.leaves_as_link[index(value)] != 0;
  }
  bool is_transient(ValueId value) const { return !is_persistent(graph_.value(value).kind); }

  // Values that must outlive forward: read in backward, or by a replay of something that is.
  void find_needed() {
    std::vector<ValueId> open(uses_.candidates.begin(), uses_.candidates.end());
    for (const ValueId value : open) is_needed_[index(value)] = 1;
    while (!open.empty()) {
      const ValueId value = open.back();
      open.pop_back();
      if (retention(value) != Retention::recompute) continue;
      const std::int32_t replay = uses_.at(value).replay;
      if (replay < 0)
        throw PlanError(graph_.value(value).name + " cannot be computed again; keep or offload it");
      for (const ValueId read : graph_.replays[static_cast<std::size_t>(replay)].reads)
        if (is_transient(read) && is_needed_[index(read)] == 0) {
          is_needed_[index(read)] = 1;
          open.push_back(read);
        }
    }
  }

  std::int32_t now() const { return static_cast<std::int32_t>(result_.actions.size()); }

  void run_forward(std::uint32_t operation) {
    const PhysicalOperation& op = graph_.operations[operation];
    for (const ValueId value : op.reads) last_used_at_[index(value)] = now();
    for (const ValueId value : op.writes) {
      made_at_[index(value)] = last_used_at_[index(value)] = now();
      is_resident_[index(value)] = 1;
    }
    result_.actions.push_back({ActionKind::run, operation, {}});
  }

  void end_forward() {
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      const ValueId value{static_cast<std::uint32_t>(i)};
      if (!is_transient(value) || made_at_[i] < 0) continue;
      is_resident_[i] = is_needed_[i] != 0 && retention(value) == Retention::keep ? 1 : 0;
      is_away_[i] = is_needed_[i] != 0 && retention(value) == Retention::offload ? 1 : 0;
    }
  }

  bool is_read_by(const PhysicalOperation* op, ValueId value) const {
    return op != nullptr && std::find(op->reads.begin(), op->reads.end(), value) != op->reads.end();
  }

  // `next`: the operation of backward that follows (updates left out), or null.
  void run_backward(std::uint32_t operation, const PhysicalOperation* next) {
    const PhysicalOperation& op = graph_.operations[operation];
    for (const ValueId value : op.reads) ensure(value);
    note_uses(op);
    result_.actions.push_back({ActionKind::run, operation, {}});
    for (const ValueId value : op.writes) is_resident_[index(value)] = 1;
    for (const ValueId value : op.reads) {
      if (!is_transient(value) || made_at_[index(value)] < 0) continue;
      const bool is_last = --uses_left_[index(value)] <= 0;
      const bool drops = is_last || (decisions_.drop_between_uses && !is_read_by(next, value));
      if (!drops) continue;
      if (retention(value) == Retention::recompute) is_resident_[index(value)] = 0;
      if (retention(value) == Retention::offload && !is_last) {
        is_resident_[index(value)] = 0;
        is_away_[index(value)] = 1;
      }
    }
    // Links of a chain that no operation reads are gone when the chain has done its work.
    for (const ValueId value : links_)
      if (retention(value) == Retention::offload)
        leave_again(value, op);
      else if (uses_left_[index(value)] <= 0 || (leaves_as_link(value) && !is_read_by(&op, value)))
        is_resident_[index(value)] = 0;
    links_.clear();
  }

  // An offloaded value that came back for a chain alone.
  void leave_again(ValueId value, const PhysicalOperation& op) {
    if (!leaves_as_link(value) || is_read_by(&op, value) || is_resident_[index(value)] == 0) return;
    is_resident_[index(value)] = 0;
    is_away_[index(value)] = 1;
  }

  // Replays, the deepest first. Iterative: chains may be thousands of layers long.
  void ensure(ValueId wanted) {
    stack_.push_back(wanted);
    while (!stack_.empty()) {
      const ValueId value = stack_.back();
      if (is_resident_[index(value)] != 0) {
        stack_.pop_back();
        continue;
      }
      if (retention(value) == Retention::offload) {
        is_resident_[index(value)] = 1;  // the copy is put in later, before the first use
        if (stack_.size() > 1) links_.push_back(value);
        stack_.pop_back();
        continue;
      }
      const std::int32_t number = uses_.at(value).replay;
      LAYUP_ASSERT(number >= 0);
      const PhysicalOperation& replay = graph_.replays[static_cast<std::size_t>(number)];
      const std::size_t depth = stack_.size();
      for (const ValueId read : replay.reads)
        if (is_resident_[index(read)] == 0) stack_.push_back(read);
      if (stack_.size() > depth) continue;
      note_uses(replay);
      result_.actions.push_back({ActionKind::replay, static_cast<std::uint32_t>(number), {}});
      for (const ValueId written : replay.writes) {
        is_resident_[index(written)] = 1;
        links_.push_back(written);
      }
      stack_.pop_back();
    }
  }

  // Closes the stretches of operands that come back for the action that is about to be added.
  void note_uses(const PhysicalOperation& op) {
    for (const ValueId value : op.reads) {
      const std::size_t i = index(value);
      if (is_away_[i] != 0) {
        is_away_[i] = 0;
        // Needed right after its last use: it would come back at once.
        if (now() > last_used_at_[i] + 1)
          result_.offloads.push_back(
              {value, num_spans_[i]++, made_at_[i], last_used_at_[i], now()});
      }
      last_used_at_[i] = now();
    }
  }

  const PhysicalGraph& graph_;
  const ValueUses& uses_;
  const Decisions& decisions_;
  ComputeOrder result_;
  std::vector<char> is_resident_;        // by value, as are all of these
  std::vector<std::int32_t> uses_left_;  // by operations of backward
  std::vector<char> is_needed_;
  std::vector<std::int32_t> made_at_;
  std::vector<std::int32_t> last_used_at_;
  std::vector<char> is_away_;
  std::vector<int> num_spans_;
  std::vector<ValueId> links_;
  std::vector<ValueId> stack_;
};

}  // namespace

ComputeOrder order_compute(const PhysicalGraph& graph, const ValueUses& uses,
                           const Decisions& decisions) {
  return Orderer(graph, uses, decisions).order();
}

}  // namespace layup
