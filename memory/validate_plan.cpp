// SPDX-License-Identifier: Apache-2.0
#include "memory/validate_plan.h"

#include <algorithm>
#include <map>
#include <optional>

#include "engine/error.h"

namespace layup {
namespace {

class Checker {
 public:
  Checker(const MemoryPlan& plan, const PhysicalGraph& graph)
      : plan_(plan),
        graph_(graph),
        of_value_(graph.values.size()),
        is_updated_(graph.values.size(), 0),
        below_(graph.values.size()),
        runs_(graph.operations.size(), 0) {}

  void check() {
    check_residencies();
    for (std::size_t at = 0; at < plan_.actions.size(); ++at)
      check_action(plan_.actions[at], static_cast<std::int32_t>(at));
    for (std::size_t i = 0; i < runs_.size(); ++i)
      if (runs_[i] != 1)
        fail(graph_.operations[i].name + " runs " + std::to_string(runs_[i]) + " times");
    for (const std::vector<Stay>& stays : of_value_)
      for (const Stay& stay : stays)
        if (stay.copy != Copy::none)
          fail(name(residency(stay.number)) + " ends before its copy is waited for");
    check_tiers();
    check_overlaps();
  }

 private:
  enum class Copy : std::uint8_t { none, out, in };
  struct Stay {
    std::int32_t number = 0;
    bool is_filled = false;
    Copy copy = Copy::none;  // that runs
  };

  [[noreturn]] static void fail(const std::string& what) {
    throw PlanError("invalid memory plan: " + what);
  }
  std::string name(const Residency& stay) const {
    return (stay.value == kWorkspace ? "workspace" : graph_.value(stay.value).name) + " in [" +
           std::to_string(stay.begin) + ", " + std::to_string(stay.end) + ")";
  }
  const Residency& residency(std::int32_t number) const {
    return plan_.residencies[static_cast<std::size_t>(number)];
  }

  void check_residencies() {
    workspace_at_.assign(plan_.actions.size(), 0);
    for (std::size_t i = 0; i < plan_.residencies.size(); ++i) {
      const Residency& stay = plan_.residencies[i];
      if (stay.begin < 0 || stay.end <= stay.begin ||
          stay.end > static_cast<std::int32_t>(plan_.actions.size()))
        fail(name(stay) + " has an empty or impossible lifetime");
      if (stay.offset < 0 || stay.offset % kAlignment != 0 || stay.bytes <= 0 ||
          stay.offset + stay.bytes > plan_.arena_bytes)
        fail(name(stay) + " lies outside the arena or is not aligned");
      if (stay.value == kWorkspace) {
        for (std::int32_t at = stay.begin; at < stay.end; ++at)
          workspace_at_[static_cast<std::size_t>(at)] =
              std::max(workspace_at_[static_cast<std::size_t>(at)], stay.bytes);
        continue;
      }
      if (index(stay.value) >= graph_.values.size()) fail("a residency of no value");
      const PhysicalValue& value = graph_.value(stay.value);
      if (stay.bytes < value.bytes) fail(name(stay) + " is smaller than its value");
      if (is_persistent(value.kind)) {
        const auto found = plan_.persistent.offsets.find(value.name);
        if (found == plan_.persistent.offsets.end() || found->second != stay.offset)
          fail(name(stay) + " does not lie where the persistent layout says");
        if (stay.begin != 0 || stay.end != static_cast<std::int32_t>(plan_.actions.size()))
          fail(name(stay) + " is persistent but not there all the time");
      }
      of_value_[index(stay.value)].push_back(
          {static_cast<std::int32_t>(i), is_persistent(value.kind)});
    }
  }

  // The one residency of the value that contains the action.
  Stay& stay_at(ValueId value, std::int32_t at, const std::string& user) {
    for (Stay& stay : of_value_[index(value)]) {
      const Residency& where = residency(stay.number);
      if (where.begin <= at && at < where.end) return stay;
    }
    fail(user + " uses " + graph_.value(value).name + ", which is not on the device at action " +
         std::to_string(at));
  }

  void check_action(const Action& action, std::int32_t at) {
    if (action.kind == ActionKind::run || action.kind == ActionKind::replay) {
      const PhysicalOperation& op = operation_of(graph_, action);
      if (action.kind == ActionKind::run) ++runs_[action.operation];
      for (const ValueId value : op.reads)
        if (is_updated_[index(value)] != 0)
          fail(op.name + " reads " + graph_.value(value).name + " after its update");
      if (op.kind == OpKind::update)
        for (const ValueId value : op.writes) is_updated_[index(value)] = 1;
      for (const ValueId value : op.reads)
        if (!stay_at(value, at, op.name).is_filled)
          fail(op.name + " reads " + graph_.value(value).name + " before it is made");
      for (const ValueId value : op.writes) stay_at(value, at, op.name).is_filled = true;
      if (op.workspace_bytes > workspace_at_[static_cast<std::size_t>(at)])
        fail(op.name + " has too small a workspace");
      return;
    }
    check_copy(action, stay_at(action.value, at, "a copy"));
  }

  void check_copy(const Action& action, Stay& stay) {
    const auto require = [&](bool good, const char* what) {
      if (!good) fail(what + graph_.value(action.value).name);
    };
    switch (action.kind) {
      case ActionKind::offload:
        require(stay.is_filled, "an offload before it is made, of ");
        require(stay.copy == Copy::none, "a second copy at the same time, of ");
        stay.copy = Copy::out;
        check_place_below(action, stay);
        below_[index(action.value)] = action.tier;
        return;
      case ActionKind::prefetch:
        require(below_[index(action.value)] == action.tier,
                "a prefetch before any offload to that tier, of ");
        check_place_below(action, stay);
        require(stay.copy == Copy::none, "a second copy at the same time, of ");
        stay.copy = Copy::in;
        stay.is_filled = false;
        return;
      case ActionKind::wait_offload:
        require(stay.copy == Copy::out, "a wait for an offload that does not run, of ");
        break;
      default:
        require(stay.copy == Copy::in, "a wait for a prefetch that does not run, of ");
        stay.is_filled = true;
    }
    stay.copy = Copy::none;
  }

  void check_place_below(const Action& action, const Stay& stay) const {
    const PhysicalValue& value = graph_.value(action.value);
    const std::int64_t at = index(action.value) < plan_.host_offsets.size()
                                ? plan_.host_offsets[index(action.value)]
                                : -1;
    const bool is_file = action.tier == Tier::file;
    if (at < 0 || at + value.bytes > (is_file ? plan_.file_bytes : plan_.host_bytes))
      fail(value.name + " has no place in the tier that it goes to");
    if (is_file && (at % kFileAlignment != 0 || value.bytes % kFileAlignment != 0 ||
                    residency(stay.number).offset % kFileAlignment != 0))
      fail(value.name + " goes to the file but is not aligned for it");
  }

  // No two values share bytes of a tier.
  void check_tiers() const {
    std::map<std::pair<Tier, std::int64_t>, std::size_t> by_offset;
    for (std::size_t i = 0; i < below_.size(); ++i) {
      if (!below_[i]) continue;
      const auto [place, is_new] =
          by_offset.emplace(std::pair(*below_[i], plan_.host_offsets[i]), i);
      if (!is_new) fail_shared(i, place->second);
    }
    for (auto place = by_offset.begin(); place != by_offset.end(); ++place) {
      const auto next = std::next(place);
      if (next != by_offset.end() && next->first.first == place->first.first &&
          place->first.second + graph_.values[place->second].bytes > next->first.second)
        fail_shared(place->second, next->second);
    }
  }
  [[noreturn]] void fail_shared(std::size_t a, std::size_t b) const {
    fail(graph_.values[a].name + " and " + graph_.values[b].name + " share bytes of a tier");
  }

  bool hands_over(const Residency& from, const Residency& to) const {
    if (to.begin != from.end - 1 || from.offset != to.offset || from.bytes != to.bytes)
      return false;
    const Action& action = plan_.actions[static_cast<std::size_t>(to.begin)];
    if (action.kind != ActionKind::run && action.kind != ActionKind::replay) return false;
    const PhysicalOperation& op = operation_of(graph_, action);
    return std::any_of(op.in_place.begin(), op.in_place.end(), [&](const InPlace& pair) {
      return op.reads[static_cast<std::size_t>(pair.read)] == from.value &&
             op.writes[static_cast<std::size_t>(pair.write)] == to.value;
    });
  }

  // Sweeps over time with the live residencies ordered by offset.
  void check_overlaps() const {
    std::vector<std::int32_t> by_begin(plan_.residencies.size());
    std::vector<std::int32_t> by_end(plan_.residencies.size());
    for (std::size_t i = 0; i < by_begin.size(); ++i)
      by_begin[i] = by_end[i] = static_cast<std::int32_t>(i);
    // What ends by handing over its bytes leaves one action early.
    std::vector<std::int32_t> last(plan_.residencies.size());
    for (std::size_t i = 0; i < last.size(); ++i) last[i] = plan_.residencies[i].end;
    for (const Residency& stay : plan_.residencies)
      if (stay.over >= 0) {
        if (stay.over >= static_cast<std::int32_t>(plan_.residencies.size()) ||
            !hands_over(residency(stay.over), stay))
          fail(name(stay) + " takes over bytes that no operation hands to it");
        if (--last[static_cast<std::size_t>(stay.over)] != residency(stay.over).end - 1)
          fail(name(residency(stay.over)) + " is taken over twice");
      }
    std::stable_sort(by_begin.begin(), by_begin.end(), [&](std::int32_t a, std::int32_t b) {
      return residency(a).begin < residency(b).begin;
    });
    std::stable_sort(by_end.begin(), by_end.end(), [&](std::int32_t a, std::int32_t b) {
      return last[static_cast<std::size_t>(a)] < last[static_cast<std::size_t>(b)];
    });
    std::map<std::int64_t, std::int32_t> live;  // offset -> residency
    auto ended = by_end.begin();
    for (const std::int32_t number : by_begin) {
      const Residency& stay = residency(number);
      for (; ended != by_end.end() && last[static_cast<std::size_t>(*ended)] <= stay.begin;
           ++ended) {
        const auto gone = live.find(residency(*ended).offset);
        if (gone != live.end() && gone->second == *ended) live.erase(gone);
      }
      if (last[static_cast<std::size_t>(number)] <= stay.begin) continue;  // handed over at once
      const auto next = live.lower_bound(stay.offset);
      if (next != live.end() && next->first < stay.offset + stay.bytes)
        fail(name(stay) + " and " + name(residency(next->second)) +
             " share bytes while both are live");
      if (next != live.begin()) {
        const Residency& before = residency(std::prev(next)->second);
        if (before.offset + before.bytes > stay.offset)
          fail(name(stay) + " and " + name(before) + " share bytes while both are live");
      }
      live.emplace(stay.offset, number);
    }
  }

  const MemoryPlan& plan_;
  const PhysicalGraph& graph_;
  std::vector<std::vector<Stay>> of_value_;
  std::vector<std::int64_t> workspace_at_;
  std::vector<char> is_updated_;            // by value
  std::vector<std::optional<Tier>> below_;  // by value: where its offload went
  std::vector<int> runs_;                   // by operation
};

}  // namespace

void validate_plan(const MemoryPlan& plan, const PhysicalGraph& graph) {
  Checker(plan, graph).check();
}

}  // namespace layup
