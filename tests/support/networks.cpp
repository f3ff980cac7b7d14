// SPDX-License-Identifier: Apache-2.0
#include "tests/support/networks.h"

#include "layers/registry.h"
#include "models/builder.h"

namespace layup::test {
namespace {

GraphDef read_network(const JsonNode& root) {
  JsonErrors errors("net.json");
  JsonReader reader(root, "", errors);
  GraphDef def = read_graph_def(reader, builtin_layers());
  errors.throw_if_any();
  return def;
}

}  // namespace

const char* const kSmallResidual = R"({"name": "small", "input": {"shape": [1, 6, 6]}, "layers": [
  {"name": "conv1", "type": "conv2d", "out_channels": 2, "kernel": 3, "padding": 1, "bias": false},
  {"name": "bn1", "type": "batch_norm"},
  {"name": "relu1", "type": "relu"},
  {"name": "conv2", "type": "conv2d", "out_channels": 2, "kernel": 3, "padding": 1},
  {"name": "sum", "type": "add", "inputs": ["conv2", "relu1"]},
  {"name": "pool", "type": "max_pool2d", "kernel": 2, "stride": 2},
  {"name": "drop", "type": "dropout", "p": 0.25},
  {"name": "fc", "type": "linear", "out_features": 3},
  {"name": "loss", "type": "softmax_cross_entropy"}]})";

GraphDef parse_network(const std::string& text) {
  return read_network(parse_json(text, "net.json"));
}

GraphDef build_network(const std::string& model, const Shape& sample_shape, std::int64_t classes) {
  const JsonNode node = parse_json(model, "model.json");
  JsonErrors errors("model.json");
  JsonReader reader(node, "/model", errors);
  const Json network = build_model(reader, {sample_shape, classes});
  errors.throw_if_any();
  return read_network(JsonNode::from(network));
}

SolverConfig parse_solver(const std::string& text) {
  const JsonNode node = parse_json(text, "solver.json");
  JsonErrors errors("solver.json");
  JsonReader reader(node, "/solver", errors);
  SolverConfig solver = read_solver(reader);
  errors.throw_if_any();
  return solver;
}

std::unique_ptr<Solver> momentum_solver() {
  return parse_solver(R"({"type": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4})").rule;
}

PhysicalGraph physical_training(const GraphDef& def, std::int64_t batch, int threads) {
  const Graph graph = build_graph(def, batch);
  DifferentiateOptions options;
  options.solver_states = {"momentum"};
  return select_kernels(graph, differentiate(graph, options), DeviceKind::reference, threads);
}

PlanResult plan_program(const PhysicalGraph& graph, const std::string& policy,
                        std::optional<std::int64_t> budget_bytes) {
  PlanOptions options;
  options.policy = policy;
  options.budget_bytes = budget_bytes;
  return plan_memory(graph, estimate_cost(graph), options);
}

}  // namespace layup::test
