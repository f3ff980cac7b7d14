// SPDX-License-Identifier: Apache-2.0
// A network, and what the policies make of it on a machine that need not be here.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "memory/plan_memory.h"
#include "tests/support/networks.h"

namespace layup::test {

inline const MachineProfile& k40m() {
  static const MachineProfile machine = read_machine_profile("profiles/k40m.json");
  return machine;
}

struct PlannedNetwork {
  PlannedNetwork(std::string label, const GraphDef& def, std::int64_t batch,
                 const MachineProfile& machine = k40m())
      : name(std::move(label)), graph(physical_training(def, batch)) {
    use_profile_workspaces(graph);
    cost = cost_of_profile(graph, machine);
    uses = find_uses(graph);
  }

  PlanResult plan(const std::string& policy, std::optional<std::int64_t> budget = {},
                  std::optional<std::int64_t> host_budget = {}) const {
    PlanOptions options;
    options.policy = policy;
    options.budget_bytes = budget;
    options.host_budget_bytes = host_budget;
    return plan_memory(graph, cost, options);
  }
  std::int64_t smallest(const std::string& policy) const {
    PlanOptions options;
    options.policy = policy;
    return minimum_budget_bytes(graph, cost, options).value();
  }
  // Of the graph that the policy plans with.
  Decisions decide(const std::string& policy, int variant = 0, int level = 0) const {
    const PhysicalGraph changed = graph_of(policy);
    return find_policy(policy)->decide({changed, find_uses(changed), cost, {}}, variant, level);
  }
  PhysicalGraph graph_of(const std::string& policy) const {
    PhysicalGraph changed = graph;
    if (find_policy(policy)->add_reads != nullptr) find_policy(policy)->add_reads(changed);
    return changed;
  }
  // By the name of the value.
  std::map<std::string, Retention> decisions(const std::string& policy, int variant = 0) const {
    const Decisions made = decide(policy, variant);
    std::map<std::string, Retention> by_name;
    for (const ValueId value : find_uses(graph_of(policy)).candidates)
      by_name[graph.value(value).name] = made.retention[index(value)];
    return by_name;
  }

  std::string name;
  PhysicalGraph graph;
  CostModel cost;
  ValueUses uses;
};

}  // namespace layup::test
