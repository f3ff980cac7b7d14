// SPDX-License-Identifier: Apache-2.0
#include "memory/policy.h"

#include <algorithm>

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

bool is_small(const PolicyInput& input, ValueId value) {
  constexpr std::int64_t kSmallBytes = std::int64_t{64} << 10;
  return input.graph.value(value).bytes < kSmallBytes;
}

}  // namespace layup
