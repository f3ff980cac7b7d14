// SPDX-License-Identifier: Apache-2.0
#include "memory/lifetimes.h"

#include <algorithm>
#include <numeric>

#include "engine/error.h"

namespace layup {
namespace {

constexpr std::int32_t kNone = -1;

class Collector {
 public:
  Collector(const PhysicalGraph& graph, const std::vector<Action>& actions)
      : graph_(graph), actions_(actions), open_(graph.values.size(), kNone) {}

  std::vector<Residency> collect(bool in_place) {
    const auto end = static_cast<std::int32_t>(actions_.size());
    for (std::size_t i = 0; i < graph_.values.size(); ++i)
      if (is_persistent(graph_.values[i].kind)) {
        const ValueId value{static_cast<std::uint32_t>(i)};
        begin(value, 0);
        touch(value, end - 1);
      }
    for (std::int32_t at = 0; at < end; ++at) visit(actions_[static_cast<std::size_t>(at)], at);
    if (in_place) take_over();
    return sorted();
  }

 private:
  void begin(ValueId value, std::int32_t at) {
    open_[index(value)] = static_cast<std::int32_t>(found_.size());
    found_.push_back({value, at, at + 1, graph_.value(value).bytes, 0, kNone});
  }
  void touch(ValueId value, std::int32_t at) {
    const std::int32_t residency = open_[index(value)];
    LAYUP_ASSERT(residency !=
                 kNone);  // read before it is written: validate_training_graph saw to it
    std::int32_t& end = found_[static_cast<std::size_t>(residency)].end;
    end = std::max(end, at + 1);
  }
  void visit(const Action& action, std::int32_t at) {
    switch (action.kind) {
      case ActionKind::prefetch: begin(action.value, at); return;
      case ActionKind::offload:
      case ActionKind::wait_offload:
      case ActionKind::wait_prefetch: touch(action.value, at); return;
      case ActionKind::run:
      case ActionKind::replay: break;
    }
    const PhysicalOperation& op = operation_of(graph_, action);
    std::vector<std::int32_t>& read = read_at_.emplace_back();
    for (const ValueId value : op.reads) {
      touch(value, at);
      read.push_back(open_[index(value)]);
    }
    std::vector<std::int32_t>& written = written_at_.emplace_back();
    for (const ValueId value : op.writes) {
      if (is_persistent(graph_.value(value).kind)) {
        written.push_back(kNone);
        continue;
      }
      begin(value, at);
      written.push_back(open_[index(value)]);
    }
    compute_actions_.push_back(at);
    if (op.workspace_bytes > 0)
      found_.push_back({kWorkspace, at, at + 1, op.workspace_bytes, 0, kNone});
  }
  void take_over() {
    std::vector<char> taken(found_.size(), 0);
    for (std::size_t i = 0; i < compute_actions_.size(); ++i) {
      const std::int32_t at = compute_actions_[i];
      const PhysicalOperation& op = operation_of(graph_, actions_[static_cast<std::size_t>(at)]);
      for (const InPlace& pair : op.in_place) {
        const std::int32_t from = read_at_[i][static_cast<std::size_t>(pair.read)];
        const std::int32_t to = written_at_[i][static_cast<std::size_t>(pair.write)];
        if (from == kNone || to == kNone) continue;
        Residency& over = found_[static_cast<std::size_t>(from)];
        Residency& result = found_[static_cast<std::size_t>(to)];
        if (is_persistent(graph_.value(over.value).kind) || over.end != at + 1 ||
            over.bytes != result.bytes || taken[static_cast<std::size_t>(from)] != 0 ||
            result.over != kNone)
          continue;
        result.over = from;
        taken[static_cast<std::size_t>(from)] = 1;
      }
    }
  }
  std::vector<Residency> sorted() const {
    std::vector<std::int32_t> order(found_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      const Residency& x = found_[static_cast<std::size_t>(a)];
      const Residency& y = found_[static_cast<std::size_t>(b)];
      return x.begin != y.begin ? x.begin < y.begin : x.end > y.end;
    });
    std::vector<std::int32_t> new_index(found_.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      new_index[static_cast<std::size_t>(order[i])] = static_cast<std::int32_t>(i);
    std::vector<Residency> result;
    for (const std::int32_t old : order) {
      Residency residency = found_[static_cast<std::size_t>(old)];
      if (residency.over != kNone)
        residency.over = new_index[static_cast<std::size_t>(residency.over)];
      result.push_back(residency);
    }
    return result;
  }

  const PhysicalGraph& graph_;
  const std::vector<Action>& actions_;
  std::vector<std::int32_t> open_;  // by value: its latest residency
  std::vector<Residency> found_;
  // Per run or replay: its action, and the residencies of its operands.
  std::vector<std::int32_t> compute_actions_;
  std::vector<std::vector<std::int32_t>> read_at_;
  std::vector<std::vector<std::int32_t>> written_at_;
};

}  // namespace

std::vector<Residency> compute_lifetimes(const PhysicalGraph& graph,
                                         const std::vector<Action>& actions, bool in_place) {
  return Collector(graph, actions).collect(in_place);
}

}  // namespace layup
