// SPDX-License-Identifier: Apache-2.0
// Networks, solvers and graphs from JSON texts, for tests of what comes after the configuration.
#pragma once

#include <optional>
#include <string>

#include "engine/graph/graph_def.h"
#include "engine/graph/physical_graph.h"
#include "engine/solver/solver.h"
#include "memory/plan_memory.h"

namespace layup::test {

// A network file's text. Throws ConfigError with all errors.
GraphDef parse_network(const std::string& text);

// {"builder": ...} for samples of this shape.
GraphDef build_network(const std::string& model, const Shape& sample_shape, std::int64_t classes);

SolverConfig parse_solver(const std::string& text);
// SGD with momentum and weight decay.
std::unique_ptr<Solver> momentum_solver();

// The training graph on the reference device, with one state ("momentum") per parameter.
PhysicalGraph physical_training(const GraphDef& def, std::int64_t batch, int threads = 1);

// The plan of one program by itself; not of a session.
PlanResult plan_program(const PhysicalGraph& graph, const std::string& policy,
                        std::optional<std::int64_t> budget_bytes = {});

// A residual network of 1x6x6 samples and 3 classes with everything that makes plans differ:
// convolutions, batch norm, an in-place ReLU, a shortcut, pooling, dropout.
extern const char* const kSmallResidual;

}  // namespace layup::test
