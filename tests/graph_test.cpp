// SPDX-License-Identifier: Apache-2.0
// From a network file to a graph with shapes: what is read, what is refused and with which words.
#include <doctest/doctest.h>

#include <functional>

#include "engine/error.h"
#include "engine/graph/graph.h"
#include "tests/support/networks.h"
#include "tests/support/random_graph.h"

namespace layup {
namespace {

using test::parse_network;

std::string error_of(const std::string& text) {
  try {
    build_graph(parse_network(text), 2);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string network(const std::string& layers, const std::string& shape = "[1, 6, 6]") {
  return R"({"name": "net", "input": {"shape": )" + shape + "},\n\"layers\": [\n" + layers + "]}";
}

void check_error(const std::string& text, const std::vector<std::string>& words) {
  const std::string error = error_of(text);
  for (const std::string& word : words) {
    INFO("looking for \"" << word << "\" in: " << error);
    CHECK(error.find(word) != std::string::npos);
  }
}

constexpr const char* kRelu = R"({"name": "a", "type": "relu"})";

TEST_CASE("graph: a network file gives layers, shapes and readers") {
  const Graph graph = build_graph(parse_network(test::kSmallResidual), 4);
  CHECK(to_string(graph) ==
        "small, input f32[4, 1, 6, 6]\n"
        "  conv1: conv2d(input) -> f32[4, 2, 6, 6]\n"
        "  bn1: batch_norm(conv1) -> f32[4, 2, 6, 6]\n"
        "  relu1: relu(bn1) -> f32[4, 2, 6, 6]\n"
        "  conv2: conv2d(relu1) -> f32[4, 2, 6, 6]\n"
        "  sum: add(conv2, relu1) -> f32[4, 2, 6, 6]\n"
        "  pool: max_pool2d(sum) -> f32[4, 2, 3, 3]\n"
        "  drop: dropout(pool) -> f32[4, 2, 3, 3]\n"
        "  fc: linear(drop) -> f32[4, 3]\n"
        "  loss: softmax_cross_entropy(fc) -> f32[1]\n");
  CHECK(graph.tensor(graph.node(NodeId{2}).output).readers ==
        std::vector<NodeId>{NodeId{3}, NodeId{4}});
  CHECK(num_parameters(graph) == 18 + 4 + 38 + 57);
  CHECK(num_classes(graph) == 3);
}

TEST_CASE("graph: names are unique, known and not taken") {
  check_error(network(std::string(kRelu) + ",\n" + kRelu),
              {"net.json:4:", "two layers are named \"a\"", "/layers/0"});
  check_error(network(R"({"name": "input", "type": "relu"})"),
              {"net.json:3:", "\"input\"", "taken"});
  check_error(network(R"({"name": "conv1", "type": "relu"},
                         {"name": "b", "type": "relu", "inputs": ["conv2"]})"),
              {"net.json:4:", "there is no layer \"conv2\"", "did you mean \"conv1\"?"});
  check_error(network(R"({"name": "a", "type": "relu", "inputs": []})"), {"inputs is empty"});
}

TEST_CASE("graph: unknown types and keys come with a suggestion") {
  check_error(network(R"({"name": "a", "type": "conv2"})"),
              {"net.json:3:", "/layers/0/type", "did you mean \"conv2d\"?"});
  check_error(network(R"({"name": "a", "type": "linear", "out_feature": 3})"),
              {"out_feature", "did you mean \"out_features\"?"});
  // All errors in one go.
  check_error(network(R"({"name": "a", "type": "linear"}, {"name": "b", "type": "rellu"})"),
              {"out_features", "did you mean \"relu\"?"});
}

TEST_CASE("graph: a cycle is named along its way") {
  check_error(network(R"({"name": "a", "type": "add", "inputs": ["input", "c"]},
                         {"name": "b", "type": "relu"},
                         {"name": "c", "type": "relu"})"),
              {"cycle", "cycle: b -> c -> a -> b"});
  check_error(network(R"({"name": "a", "type": "relu", "inputs": ["a"]})"), {"cycle: a -> a"});
}

TEST_CASE("graph: shapes that do not fit show how each branch came to its own") {
  check_error(
      network(R"({"name": "left", "type": "conv2d", "out_channels": 2, "kernel": 3},
                         {"name": "leftpool", "type": "max_pool2d", "kernel": 2},
                         {"name": "right", "type": "conv2d", "out_channels": 3, "kernel": 3,
                          "inputs": ["input"]},
                         {"name": "sum", "type": "add", "inputs": ["leftpool", "right"]})"),
      {"net.json:7:", "layer \"sum\" (add)", " (at /layers/3)\n", "[2, 2, 2, 2]", "[2, 3, 4, 4]",
       "input 1: leftpool [2, 2, 2, 2] <- left [2, 2, 4, 4] <- input [2, 1, 6, 6]",
       "input 2: right [2, 3, 4, 4] <- input [2, 1, 6, 6]"});
  check_error(network(R"({"name": "wide", "type": "conv2d", "out_channels": 1, "kernel": 9})"),
              {"net.json:3:", "layer \"wide\" (conv2d)", "9x9", "6x6", " (at /layers/0)"});
}

TEST_CASE("graph: sizes beyond 63 bits are refused") {
  check_error(network(kRelu, "[1048576, 1099511627776, 1048576]"),
              {"net.json:1:1: ", "overflow", "(at /)"});
  check_error(network(R"({"name": "fc", "type": "linear", "out_features": 1099511627776})",
                      "[1099511627776]"),
              {"fc", "overflow"});
  CHECK(error_of(network(kRelu, "[1, 0, 6]")).find("/input/shape/1") != std::string::npos);
}

TEST_CASE("graph: the order does not depend on chance when the file has none") {
  const std::string shuffled = network(R"({"name": "sum", "type": "add", "inputs": ["b", "c"]},
                         {"name": "c", "type": "relu", "inputs": ["a"]},
                         {"name": "b", "type": "relu", "inputs": ["a"]},
                         {"name": "a", "type": "relu", "inputs": ["input"]})");
  const Graph graph = build_graph(parse_network(shuffled), 2);
  std::string order;
  for (const Node& node : graph.nodes) order += node.name + " ";
  // Always the layer that is ready and stands first in the file.
  CHECK(order == "a c b sum ");
}

TEST_CASE("graph: what is written as JSON reads back the same") {
  std::vector<std::string> texts = {test::kSmallResidual};
  for (std::uint64_t seed = 0; seed < 20; ++seed) texts.push_back(test::random_network(seed, 12));
  for (const std::string& text : texts) {
    const GraphDef def = parse_network(text);
    const Json json = to_json(def);
    const GraphDef again = parse_network(json.dump());
    CHECK(to_json(again) == json);
    CHECK(to_string(build_graph(again, 3)) == to_string(build_graph(def, 3)));
  }
}

struct Breakage {
  std::string name;
  std::function<void(Graph&)> apply;
  const char* words;
};

TEST_CASE("graph: the validator refuses broken graphs") {
  const std::vector<Breakage> breakages = {
      {"batch", [](Graph& g) { g.batch = 0; }, "batch is not positive"},
      {"input", [](Graph& g) { g.input = TensorId{99}; }, "no input"},
      {"unknown tensor", [](Graph& g) { g.nodes[1].inputs = {TensorId{99}}; }, "is not there"},
      {"order", [](Graph& g) { std::swap(g.nodes[2], g.nodes[3]); }, "before it is written"},
      {"two writers", [](Graph& g) { g.nodes[2].output = g.nodes[1].output; }, "second time"},
      {"producer", [](Graph& g) { g.tensors[2].producer = NodeId{4}; }, "not the producer"},
      {"output spec", [](Graph& g) { g.tensors[2].spec.shape[1] = 7; }, "is not the layer's"},
      {"shape", [](Graph& g) { g.tensors[0].spec.shape[2] = 8; }, "not those of its inputs"},
      {"zero", [](Graph& g) { g.tensors[2].spec.shape[0] = g.nodes[1].info.output.shape[0] = 0; },
       "not positive"},
      {"unwritten",
       [](Graph& g) {
         g.tensors.push_back({"loose", {{1}}, std::nullopt, {}});
       },
       "loose is never written"},
      {"readers", [](Graph& g) { g.tensors[3].readers.pop_back(); }, "wrong readers"},
  };
  const Graph good = build_graph(parse_network(test::kSmallResidual), 4);
  CHECK_NOTHROW(validate_graph(good));
  for (const Breakage& breakage : breakages) {
    CAPTURE(breakage.name);
    Graph graph = good;
    breakage.apply(graph);
    std::string error;
    try {
      validate_graph(graph);
    } catch (const GraphError& caught) {
      error = caught.what();
    }
    INFO("error: " << error);
    CHECK(error.find(breakage.words) != std::string::npos);
  }
}

}  // namespace
}  // namespace layup
