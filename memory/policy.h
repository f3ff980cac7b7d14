// SPDX-License-Identifier: Apache-2.0
// A policy decides what becomes of every value. Packing, lowering, validation and simulation are
// shared, and no policy calls another one. One policy is one stem in policies/ plus one word in the
// list of memory/meson.build.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "memory/machine_profile.h"
#include "memory/memory_plan.h"

namespace layup {

struct PolicyInput {
  const PhysicalGraph& graph;
  const MachineProfile* machine = nullptr;  // costs; null if there are none
};

struct Decisions {
  std::vector<Retention> retention;  // by value; empty: everything is kept
  bool updates_inside_backward = true;
  bool in_place = true;
  bool reuse = true;  // false: every value keeps bytes of its own for the whole step
  // Bytes that the policy's paper counts and this engine has no use for; placed like a value that
  // lives for the whole step.
  std::int64_t accounting_bytes = 0;
};

struct Policy {
  std::string name;
  std::string summary;  // half a line for people
  Decisions (*decide)(const PolicyInput& input) = nullptr;
};

const std::vector<Policy>& builtin_policies();
std::vector<std::string> policy_names();           // with "auto"
const Policy* find_policy(std::string_view name);  // null if there is none

}  // namespace layup
