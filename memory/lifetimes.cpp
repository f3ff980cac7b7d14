// SPDX-License-Identifier: Apache-2.0
#include "memory/lifetimes.h"

#include <algorithm>

#include "engine/error.h"

namespace layup {
namespace {

constexpr std::int32_t kNone = -1;

class Collector {
 public:
  Collector(const PhysicalGraph& graph, const std::vector<Action>& actions)
      : graph_(graph), actions_(actions), open_(graph.values.size(), kNone) {
    found_.reserve(graph.values.size() + actions.size());
  }

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
    return std::move(found_);
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
    for (const ValueId value : op.reads) touch(value, at);
    const std::size_t first_write = found_.size();
    for (const ValueId value : op.writes)
      if (!is_persistent(graph_.value(value).kind)) begin(value, at);
    for (const InPlace& pair : op.in_place) {
      const ValueId over = op.reads[static_cast<std::size_t>(pair.read)];
      const ValueId result = op.writes[static_cast<std::size_t>(pair.write)];
      if (is_persistent(graph_.value(over).kind) || is_persistent(graph_.value(result).kind))
        continue;
      // The operand's residency, unless the operation writes that value anew.
      const std::int32_t from = open_[index(over)];
      if (from < static_cast<std::int32_t>(first_write))
        offers_.push_back({at, from, open_[index(result)]});
    }
    if (op.workspace_bytes > 0)
      found_.push_back({kWorkspace, at, at + 1, op.workspace_bytes, 0, kNone});
  }

  // An operand that ends where the result begins may hand over its bytes, once.
  void take_over() {
    std::vector<char> is_taken(found_.size(), 0);
    for (const Offer& offer : offers_) {
      const Residency& over = found_[static_cast<std::size_t>(offer.from)];
      Residency& result = found_[static_cast<std::size_t>(offer.to)];
      if (over.end != offer.at + 1 || over.bytes != result.bytes ||
          is_taken[static_cast<std::size_t>(offer.from)] != 0 || result.over != kNone)
        continue;
      result.over = offer.from;
      is_taken[static_cast<std::size_t>(offer.from)] = 1;
    }
  }

  // An operand whose bytes an operation may give to its result.
  struct Offer {
    std::int32_t at;
    std::int32_t from;
    std::int32_t to;
  };

  const PhysicalGraph& graph_;
  const std::vector<Action>& actions_;
  std::vector<std::int32_t> open_;  // by value: its latest residency
  std::vector<Residency> found_;
  std::vector<Offer> offers_;
};

}  // namespace

std::vector<Residency> compute_lifetimes(const PhysicalGraph& graph,
                                         const std::vector<Action>& actions, bool in_place) {
  return Collector(graph, actions).collect(in_place);
}

}  // namespace layup
