// SPDX-License-Identifier: Apache-2.0
// A plan for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "scheduler/session_plan.h"

namespace layup {

// The object of `layup plan --format json`; docs/manual.md says what each key means.
Json plan_to_json(const SessionPlan& plan);

// The lines that a run prints before its first step.
std::string plan_to_text(const SessionPlan& plan);

// One row per plan.
std::string plans_to_table(const std::vector<SessionPlan>& plans);

// The network: a line per layer with shapes, parameters and work.
std::string summary_to_text(const Graph& graph);
Json summary_to_json(const Graph& graph);

}  // namespace layup
