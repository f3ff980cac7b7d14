// SPDX-License-Identifier: Apache-2.0
#include "memory/policy.h"

#include <algorithm>
#include <map>

namespace layup {

#define LAYUP_LIST_ITEM(name) Policy name##_policy();
#include "memory/policy_list.inc"
#undef LAYUP_LIST_ITEM

const std::vector<Policy>& builtin_policies() {
  static const std::vector<Policy> policies = {
#define LAYUP_LIST_ITEM(name) name##_policy(),
#include "memory/policy_list.inc"
#undef LAYUP_LIST_ITEM
  };
  return policies;
}

std::vector<std::string> policy_names() {
  std::vector<std::string> names = {"auto"};
  for (const Policy& policy : builtin_policies()) names.push_back(policy.name);
  return names;
}

std::vector<std::string> plannable_names() {
  std::vector<std::string> names = policy_names();
  for (const Policy& policy : builtin_policies())
    for (const std::string& variant : policy.variant_names)
      names.push_back(policy.name + "/" + variant);
  return names;
}

const Policy* find_policy(std::string_view name) {
  for (const Policy& policy : builtin_policies())
    if (policy.name == name) return &policy;
  return nullptr;
}

std::vector<Retention> keep_candidates(const PolicyInput& input) {
  std::vector<Retention> retention(input.graph.values.size(), Retention::keep);
  for (std::size_t i = 0; i < retention.size(); ++i)
    if (input.uses.of[i].replay >= 0 && input.uses.of[i].num_backward_uses == 0)
      retention[i] = Retention::recompute;
  return retention;
}

void keep_tail(const PolicyInput& input, int level, int num_levels, Decisions& decisions) {
  std::int64_t total = 0;
  for (const ValueId value : input.uses.candidates) total += input.graph.value(value).bytes;
  std::int64_t kept = 0;
  for (std::size_t i = input.uses.candidates.size(); i-- > 0;) {
    const ValueId value = input.uses.candidates[i];
    kept += input.graph.value(value).bytes;
    if (static_cast<double>(kept) >
        static_cast<double>(total) * level / std::max(1, num_levels - 1))
      return;
    decisions.retention[index(value)] = Retention::keep;
  }
}

namespace {

bool is_batch_data(const PhysicalGraph& graph, ValueId value) {
  const ValueKind kind = graph.value(value).kind;
  return kind == ValueKind::activation || kind == ValueKind::input;
}

}  // namespace

void add_operands(PhysicalGraph& graph, WantedOperands (*wants)(const PhysicalGraph& graph,
                                                                const PhysicalOperation& forward)) {
  std::map<NodeId, std::vector<ValueId>> wanted;
  for (const PhysicalOperation& op : graph.operations) {
    if (op.kind != OpKind::layer || op.pass != Pass::forward) continue;
    const WantedOperands operands = wants(graph, op);
    std::vector<ValueId> xs;
    for (const ValueId value : op.reads)
      if (is_batch_data(graph, value)) xs.push_back(value);
    if (xs.size() != 1) continue;
    if (operands.x) wanted[op.node].push_back(xs[0]);
    for (const ValueId value : op.writes)
      if (operands.y && is_batch_data(graph, value)) wanted[op.node].push_back(value);
  }
  for (PhysicalOperation& op : graph.operations) {
    const bool is_backward = op.kind == OpKind::layer &&
                             (op.pass == Pass::backward_params || op.pass == Pass::backward_data);
    const auto found = is_backward ? wanted.find(op.node) : wanted.end();
    if (found == wanted.end()) continue;
    for (const ValueId value : found->second)
      if (std::find(op.reads.begin(), op.reads.end(), value) == op.reads.end())
        op.reads.push_back(value);
  }
}

std::vector<int> count_forward_readers(const PolicyInput& input) {
  std::vector<int> readers(input.graph.values.size(), 0);
  for (std::int32_t i = 0; i < input.uses.first_backward; ++i)
    for (const ValueId value : input.graph.operations[static_cast<std::size_t>(i)].reads)
      ++readers[index(value)];
  return readers;
}

bool is_small(const PolicyInput& input, ValueId value) {
  constexpr std::int64_t kSmallBytes = std::int64_t{64} << 10;
  return input.graph.value(value).bytes < kSmallBytes;
}

}  // namespace layup
