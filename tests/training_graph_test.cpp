// SPDX-License-Identifier: Apache-2.0
// Differentiation: which operations a step has, in which order, and what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "engine/error.h"
#include "engine/graph/training_graph.h"
#include "tests/support/networks.h"
#include "tests/support/random_graph.h"

namespace layup {
namespace {

using test::parse_network;

TrainingGraph training(const std::string& text, std::int64_t batch = 4) {
  DifferentiateOptions options;
  options.solver_states = {"momentum"};
  return differentiate(build_graph(parse_network(text), batch), options);
}

std::string network(const std::string& layers) {
  return R"({"name": "net", "input": {"shape": [1, 4, 4]}, "layers": [)" + layers + "]}";
}

std::string error_of(const std::string& text, std::int64_t batch = 4) {
  try {
    training(text, batch);
  } catch (const GraphError& error) {
    return error.what();
  }
  return "";
}

bool has_operation(const TrainingGraph& graph, const std::string& name) {
  return std::any_of(graph.operations.begin(), graph.operations.end(),
                     [&](const Operation& op) { return op.name == name; });
}

TEST_CASE("training graph: the operations of a small residual network") {
  CHECK(to_string(training(test::kSmallResidual)) ==
        R"(load images: staging:images -> input
load labels: staging:labels -> labels
conv1 forward: input, conv1.weight -> conv1:y
bn1 forward: conv1:y, bn1.weight, bn1.bias -> bn1:y, bn1:saved0, bn1:saved1, bn1.running_mean, bn1.running_var
relu1 forward: bn1:y -> relu1:y
conv2 forward: relu1:y, conv2.weight, conv2.bias -> conv2:y
sum forward: conv2:y, relu1:y -> sum:y
pool forward: sum:y -> pool:y, pool:saved0
drop forward: pool:y -> drop:y
fc forward: drop:y, fc.weight, fc.bias -> fc:y
loss forward: fc:y, labels -> loss:y, loss:saved0, loss:correct
loss backward_data: fc:y, labels, loss:saved0 -> loss:dx0
fc backward_params: drop:y, loss:dx0 -> fc.weight:grad, fc.bias:grad
fc backward_data: loss:dx0, fc.weight -> fc:dx0
drop backward_data: fc:dx0 -> drop:dx0
pool backward_data: pool:saved0, drop:dx0 -> pool:dx0
conv2 backward_params: relu1:y, pool:dx0 -> conv2.weight:grad, conv2.bias:grad
conv2 backward_data: pool:dx0, conv2.weight -> conv2:dx0
relu1 accumulate: pool:dx0, conv2:dx0 -> relu1:grad sum1
relu1 backward_data: relu1:y, relu1:grad sum1 -> relu1:dx0
bn1 backward_params: conv1:y, relu1:dx0, bn1:saved0, bn1:saved1 -> bn1.weight:grad, bn1.bias:grad, bn1:carry0
bn1 backward_data: conv1:y, relu1:dx0, bn1.weight, bn1:saved0, bn1:saved1, bn1:carry0 -> bn1:dx0
conv1 backward_params: input, bn1:dx0 -> conv1.weight:grad
conv1.weight update: conv1.weight:grad -> conv1.weight, conv1.weight:momentum
bn1.weight update: bn1.weight:grad -> bn1.weight, bn1.weight:momentum
bn1.bias update: bn1.bias:grad -> bn1.bias, bn1.bias:momentum
conv2.weight update: conv2.weight:grad -> conv2.weight, conv2.weight:momentum
conv2.bias update: conv2.bias:grad -> conv2.bias, conv2.bias:momentum
fc.weight update: fc.weight:grad -> fc.weight, fc.weight:momentum
fc.bias update: fc.bias:grad -> fc.bias, fc.bias:momentum
)");
}

TEST_CASE("evaluation leaves out a loss of training alone, and what only that needs") {
  const std::string layers = R"(
    {"name": "stem", "type": "conv2d", "out_channels": 1, "kernel": 1},
    {"name": "side", "type": "linear", "out_features": 3},
    {"name": "side_relu", "type": "relu"},
    {"name": "fc", "type": "linear", "out_features": 3, "inputs": ["stem"]},
    {"name": "loss", "type": "softmax_cross_entropy"},
    {"name": "side_loss", "type": "softmax_cross_entropy", "inputs": ["side_relu"],
     "training_only": true})";
  const TrainingGraph trained = training(network(layers));
  CHECK(trained.losses.size() == 2);
  CHECK(trained.value(trained.correct.value()).name == "loss:correct");
  CHECK(has_operation(trained, "side backward_params"));
  const TrainingGraph evaluated =
      inference_graph(build_graph(parse_network(network(layers)), 4), {});
  CHECK(to_string(evaluated) == R"(load images: staging:images -> input
load labels: staging:labels -> labels
stem evaluate: input, stem.weight, stem.bias -> stem:y
fc evaluate: stem:y, fc.weight, fc.bias -> fc:y
loss evaluate: fc:y, labels -> loss:y, loss:correct
)");
  // What persists is there all the same, so that checkpoints are whole.
  CHECK(evaluated.parameters.size() == trained.parameters.size());
  CHECK(error_of(network(R"({"name": "fc", "type": "linear", "out_features": 3},
    {"name": "loss", "type": "softmax_cross_entropy", "training_only": true})"))
            .find("nothing would be left to evaluate") != std::string::npos);
}

TEST_CASE("training graph: gradients of a shared tensor are added in the order of the readers") {
  // Backward meets c first, then b, then a.
  const TrainingGraph graph = training(network(R"(
    {"name": "stem", "type": "conv2d", "out_channels": 1, "kernel": 1},
    {"name": "a", "type": "relu", "inputs": ["stem"]},
    {"name": "b", "type": "relu", "inputs": ["stem"]},
    {"name": "c", "type": "relu", "inputs": ["stem"]},
    {"name": "sum", "type": "add", "inputs": ["a", "b", "c"]},
    {"name": "fc", "type": "linear", "out_features": 2},
    {"name": "loss", "type": "softmax_cross_entropy"})"));
  std::vector<std::vector<std::string>> sums;
  for (const Operation& op : graph.operations)
    if (op.kind == OpKind::accumulate)
      sums.push_back({graph.value(op.reads[0]).name, graph.value(op.reads[1]).name,
                      graph.value(op.writes[0]).name});
  CHECK(sums ==
        std::vector<std::vector<std::string>>{{"c:dx0", "b:dx0", "stem:grad sum1"},
                                              {"stem:grad sum1", "a:dx0", "stem:grad sum2"}});
}

TEST_CASE("training graph: an input that is read twice by one layer gets its gradient twice") {
  const TrainingGraph graph = training(network(R"(
    {"name": "stem", "type": "conv2d", "out_channels": 1, "kernel": 1},
    {"name": "twice", "type": "add", "inputs": ["stem", "stem"]},
    {"name": "fc", "type": "linear", "out_features": 2},
    {"name": "loss", "type": "softmax_cross_entropy"})"));
  const auto sum = std::find_if(graph.operations.begin(), graph.operations.end(),
                                [](const Operation& op) { return op.kind == OpKind::accumulate; });
  REQUIRE(sum != graph.operations.end());
  CHECK(graph.value(sum->reads[0]).name == "fc:dx0");
  CHECK(sum->reads[0] == sum->reads[1]);
}

TEST_CASE("training graph: filter gradients come before data gradients") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    const TrainingGraph graph = training(test::random_network(seed, 15));
    std::vector<NodeId> data_done;
    for (const Operation& op : graph.operations) {
      if (op.kind != OpKind::layer) continue;
      if (op.pass == Pass::backward_data) data_done.push_back(op.node);
      if (op.pass == Pass::backward_params)
        CHECK(std::find(data_done.begin(), data_done.end(), op.node) == data_done.end());
    }
  }
}

TEST_CASE("training graph: nothing computes the gradient of the input") {
  const TrainingGraph graph = training(test::kSmallResidual);
  CHECK(has_operation(graph, "conv1 backward_params"));
  CHECK_FALSE(has_operation(graph, "conv1 backward_data"));
  // Nor of what depends on nothing but the input: no parameter gains from it.
  const TrainingGraph front = training(network(R"(
    {"name": "front", "type": "relu"},
    {"name": "fc", "type": "linear", "out_features": 2},
    {"name": "loss", "type": "softmax_cross_entropy"})"));
  CHECK_FALSE(has_operation(front, "front backward_data"));
  CHECK_FALSE(has_operation(front, "fc backward_data"));
  CHECK(has_operation(front, "fc backward_params"));
}

TEST_CASE("training graph: every parameter has a gradient, a state and an update") {
  const TrainingGraph graph = training(test::kSmallResidual);
  REQUIRE(graph.parameters.size() == 7);
  CHECK(graph.parameters[0].name == "conv1.weight");
  CHECK(graph.parameters[6].name == "fc.bias");
  for (const Parameter& parameter : graph.parameters) {
    CHECK(has_operation(graph, parameter.name + " update"));
    CHECK(graph.value(parameter.gradient).name == parameter.name + ":grad");
    REQUIRE(parameter.states.size() == 1);
    CHECK(graph.value(parameter.states[0]).name == parameter.name + ":momentum");
  }
  CHECK(graph.losses.size() == 1);
  CHECK(graph.correct.has_value());
}

TEST_CASE("training graph: inference has the forward passes alone") {
  const TrainingGraph graph =
      inference_graph(build_graph(parse_network(test::kSmallResidual), 4), {});
  CHECK_FALSE(graph.is_training);
  for (const Operation& op : graph.operations)
    CHECK((op.kind == OpKind::load || op.pass == Pass::evaluate));
  for (const Value& value : graph.values) {
    CHECK(value.kind != ValueKind::solver_state);
    CHECK(value.kind != ValueKind::gradient);
    CHECK(value.kind != ValueKind::parameter_gradient);
  }
}

TEST_CASE("training graph: what cannot be trained is refused") {
  const std::string unread = error_of(network(R"({"name": "a", "type": "relu"},
                            {"name": "fc", "type": "linear", "out_features": 2})"));
  CHECK(unread.starts_with("net.json:"));
  CHECK(unread.find("\"fc\" (linear) is not read by any layer and is not a loss") !=
        std::string::npos);
  CHECK(unread.ends_with("(at /layers/1)"));
  CHECK(error_of(network(R"(
    {"name": "fc", "type": "linear", "out_features": 2},
    {"name": "side", "type": "relu"},
    {"name": "loss", "type": "softmax_cross_entropy", "inputs": ["fc"]})"))
            .find("\"side\" (relu) is not read") != std::string::npos);
  CHECK(error_of(network(R"(
    {"name": "fc", "type": "linear", "out_features": 2},
    {"name": "loss", "type": "softmax_cross_entropy"},
    {"name": "after", "type": "relu"},
    {"name": "loss2", "type": "softmax_cross_entropy", "inputs": ["fc"]})"))
            .ends_with("layer \"loss\" is a loss; no layer may read its output (at /layers/1)"));
  const std::string norm = network(R"(
    {"name": "fc", "type": "linear", "out_features": 2},
    {"name": "bn", "type": "batch_norm"},
    {"name": "loss", "type": "softmax_cross_entropy"})");
  CHECK(error_of(norm, 2).empty());
  CHECK(error_of(norm, 1).find("layer \"bn\" (batch_norm)") != std::string::npos);
}

struct Breakage {
  std::string name;
  std::function<void(TrainingGraph&)> apply;
  const char* words;
};

std::size_t position(const TrainingGraph& graph, const std::string& name) {
  for (std::size_t i = 0; i < graph.operations.size(); ++i)
    if (graph.operations[i].name == name) return i;
  FAIL("no operation " << name);
  return 0;
}

TEST_CASE("training graph: the validator refuses broken graphs") {
  const TrainingGraph good = training(test::kSmallResidual);
  const std::size_t conv = position(good, "conv2 forward");
  const std::size_t update = position(good, "fc.weight update");
  const std::size_t relu = position(good, "relu1 forward");
  const ValueId sum = good.operations[position(good, "sum forward")].writes[0];
  const auto drop = [](TrainingGraph& g, std::size_t i) {
    g.operations.erase(g.operations.begin() + static_cast<std::ptrdiff_t>(i));
  };
  const std::vector<Breakage> breakages = {
      {"order", [=](TrainingGraph& g) { std::swap(g.operations[conv], g.operations[relu]); },
       "conv2 forward reads relu1:y before it is written"},
      {"missing", [=](TrainingGraph& g) { drop(g, conv); }, "reads conv2:y before it is written"},
      {"unknown read", [=](TrainingGraph& g) { g.operations[conv].reads[0] = ValueId{9999}; },
       "reads a value that is not there"},
      {"unknown write", [=](TrainingGraph& g) { g.operations[conv].writes[0] = ValueId{9999}; },
       "writes a value that is not there"},
      {"twice",
       [=](TrainingGraph& g) { g.operations[position(g, "pool forward")].writes[0] = sum; },
       "writes sum:y for the second time"},
      {"in place",
       [=](TrainingGraph& g) {
         g.operations[position(g, "pool forward")].in_place = {{0, 0}};
       },
       "cannot take the place of"},
      {"no update", [=](TrainingGraph& g) { drop(g, update); },
       "fc.weight is updated 0 times in a step"},
      {"two updates", [=](TrainingGraph& g) { g.operations.push_back(g.operations[update]); },
       "fc.weight is updated 2 times in a step"},
      {"wrong update", [=](TrainingGraph& g) { g.operations[update].parameter = 0; },
       "does not read the gradient of its parameter"},
      {"early update",
       [=](TrainingGraph& g) {
         const Operation op = g.operations[update];
         drop(g, update);
         g.operations.insert(g.operations.begin(), op);
       },
       "fc.weight update reads fc.weight:grad before it is written"},
  };
  CHECK_NOTHROW(validate_training_graph(good));
  for (const Breakage& breakage : breakages) {
    CAPTURE(breakage.name);
    TrainingGraph graph = good;
    breakage.apply(graph);
    std::string error;
    try {
      validate_training_graph(graph);
    } catch (const GraphError& caught) {
      error = caught.what();
    }
    INFO("error: " << error);
    CHECK(error.find(breakage.words) != std::string::npos);
  }
}

}  // namespace
}  // namespace layup
