// SPDX-License-Identifier: Apache-2.0
#include "memory/policy.h"

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

}  // namespace layup
