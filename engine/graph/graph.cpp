// SPDX-License-Identifier: Apache-2.0
#include "engine/graph/graph.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "engine/error.h"

namespace layup {
namespace {

// Kahn's algorithm, always taking the layer that stands first in the file.
std::vector<std::size_t> topological_order(
    const GraphDef& def, const std::unordered_map<std::string, std::size_t>& index_of) {
  std::vector<std::size_t> missing(def.layers.size(), 0);
  std::vector<std::vector<std::size_t>> readers(def.layers.size());
  for (std::size_t i = 0; i < def.layers.size(); ++i)
    for (const std::string& input : def.layers[i].inputs) {
      if (input == kInputName) continue;
      const auto found = index_of.find(input);
      if (found == index_of.end())
        throw GraphError(def.layers[i].place.describe(
            "layer \"" + def.layers[i].name + "\" reads \"" + input + "\", which is not there"));
      readers[found->second].push_back(i);
      ++missing[i];
    }
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
  for (std::size_t i = 0; i < missing.size(); ++i)
    if (missing[i] == 0) ready.push(i);
  std::vector<std::size_t> order;
  while (!ready.empty()) {
    const std::size_t layer = ready.top();
    ready.pop();
    order.push_back(layer);
    for (const std::size_t reader : readers[layer])
      if (--missing[reader] == 0) ready.push(reader);
  }
  if (order.size() != def.layers.size())
    throw GraphError(def.place.describe("the layers form a cycle"));
  return order;
}

// "conv2 [8, 32, 14, 14] <- pool1 [8, 16, 14, 14] <- ... ": how a tensor got its shape.
std::string shape_chain(const Graph& graph, TensorId id) {
  constexpr int kLongest = 8;
  std::string text;
  for (int length = 0;; ++length) {
    const Tensor& tensor = graph.tensor(id);
    text += (text.empty() ? "" : " <- ") + tensor.name + " " + to_string(tensor.spec.shape);
    if (!tensor.producer) return text;
    if (length == kLongest) return text + " <- ...";
    id = graph.node(*tensor.producer).inputs[0];
  }
}

[[noreturn]] void throw_at_layer(const Graph& graph, const LayerDef& def,
                                 const std::vector<TensorId>& inputs, const std::string& problem) {
  std::string text =
      def.place.describe("layer \"" + def.name + "\" (" + def.type + "): " + problem);
  int number = 0;
  for (const TensorId input : inputs)
    text += "\n  input " + std::to_string(++number) + ": " + shape_chain(graph, input);
  throw GraphError(text);
}

// Does `node` read its input number `number` in backward?
bool reads_in_backward(const Node& node, int number) {
  for (const Pass pass : {Pass::backward_params, Pass::backward_data})
    for (const Slot& slot : node.info.pass(pass).reads)
      if (slot == Slot{Role::x, number}) return true;
  return false;
}

// Layers whose output no reader wants in backward save something smaller where they can.
void choose_smaller_saves(Graph& graph) {
  for (Node& node : graph.nodes) {
    std::shared_ptr<const Layer> smaller = node.layer->with_smaller_saves();
    if (smaller == nullptr) continue;
    bool is_wanted = false;
    for (const NodeId reader : graph.tensor(node.output).readers) {
      const Node& other = graph.node(reader);
      for (std::size_t i = 0; i < other.inputs.size(); ++i)
        is_wanted = is_wanted || (other.inputs[i] == node.output &&
                                  reads_in_backward(other, static_cast<int>(i)));
    }
    if (is_wanted) continue;
    node.layer = std::move(smaller);
    node.info = node.layer->infer(graph.input_specs(node));
  }
}

}  // namespace

std::vector<TensorSpec> Graph::input_specs(const Node& of) const {
  std::vector<TensorSpec> specs;
  for (const TensorId id : of.inputs) specs.push_back(tensor(id).spec);
  return specs;
}

Graph build_graph(const GraphDef& def, std::int64_t batch) {
  std::unordered_map<std::string, std::size_t> index_of;
  for (std::size_t i = 0; i < def.layers.size(); ++i) index_of.emplace(def.layers[i].name, i);

  Graph graph;
  graph.name = def.name;
  graph.place = def.place;
  graph.batch = batch;
  Shape input_shape = {batch};
  input_shape.insert(input_shape.end(), def.input_shape.begin(), def.input_shape.end());
  graph.tensors.push_back({kInputName, {input_shape, DType::f32}, std::nullopt, {}});
  try {
    num_bytes(graph.tensors[0].spec);  // overflow shows here, with no layer to blame
  } catch (const GraphError& error) {
    throw GraphError(def.place.describe(error.what()));
  }

  std::unordered_map<std::string, TensorId> output_of = {{kInputName, TensorId{0}}};
  for (const std::size_t i : topological_order(def, index_of)) {
    const LayerDef& layer = def.layers[i];
    const NodeId id{static_cast<std::uint32_t>(graph.nodes.size())};
    Node node{layer.name, layer.type, layer.layer, {}, {}, {}, layer.place};
    for (const std::string& input : layer.inputs) node.inputs.push_back(output_of.at(input));
    try {
      node.info = layer.layer->infer(graph.input_specs(node));
      num_bytes(node.info.output);
    } catch (const GraphError& error) {
      throw_at_layer(graph, layer, node.inputs, error.what());
    }
    node.output = TensorId{static_cast<std::uint32_t>(graph.tensors.size())};
    graph.tensors.push_back({layer.name, node.info.output, id, {}});
    for (const TensorId input : node.inputs) graph.tensors[index(input)].readers.push_back(id);
    output_of.emplace(layer.name, node.output);
    graph.nodes.push_back(std::move(node));
  }
  choose_smaller_saves(graph);
  validate_graph(graph);
  return graph;
}

void validate_graph(const Graph& graph) {
  const auto require = [](bool good, const std::string& what) {
    if (!good) throw GraphError("invalid graph: " + what);
  };
  require(graph.batch > 0, "the batch is not positive");
  require(index(graph.input) < graph.tensors.size(), "there is no input");
  std::vector<std::vector<NodeId>> readers(graph.tensors.size());
  std::vector<char> written(graph.tensors.size(), 0);
  written[index(graph.input)] = 1;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const NodeId id{static_cast<std::uint32_t>(i)};
    for (const TensorId input : node.inputs) {
      require(index(input) < graph.tensors.size(), node.name + " reads a tensor that is not there");
      require(written[index(input)] != 0,
              node.name + " reads before it is written: " + graph.tensor(input).name);
      readers[index(input)].push_back(id);
    }
    require(index(node.output) < graph.tensors.size(), node.name + " writes nowhere");
    require(written[index(node.output)] == 0, node.name + " writes a tensor for the second time");
    written[index(node.output)] = 1;
    const Tensor& output = graph.tensor(node.output);
    require(output.producer == id, node.name + " is not the producer of its output");
    require(output.spec == node.info.output, node.name + ": the output's shape is not the layer's");
    for (const std::int64_t dim : output.spec.shape)
      require(dim > 0, node.name + ": a dimension is not positive");
    require(node.layer->infer(graph.input_specs(node)) == node.info,
            node.name + ": the stored shapes are not those of its inputs");
  }
  for (std::size_t i = 0; i < graph.tensors.size(); ++i) {
    require(written[i] != 0, graph.tensors[i].name + " is never written");
    require(readers[i] == graph.tensors[i].readers, graph.tensors[i].name + ": wrong readers");
  }
}

std::int64_t num_parameters(const Node& node) {
  std::int64_t count = 0;
  for (const ParameterSpec& parameter : node.info.parameters)
    count = checked_add(count, num_elements(parameter.shape));
  return count;
}

std::int64_t num_parameters(const Graph& graph) {
  std::int64_t count = 0;
  for (const Node& node : graph.nodes) count = checked_add(count, num_parameters(node));
  return count;
}

std::optional<std::int64_t> num_classes(const Graph& graph) {
  std::optional<std::int64_t> least;
  for (const Node& node : graph.nodes)
    if (node.info.is_loss) {
      const std::int64_t classes = graph.tensor(node.inputs[0]).spec.shape.at(1);
      least = std::min(least.value_or(classes), classes);
    }
  return least;
}

std::string to_string(const Graph& graph) {
  std::string text = graph.name + ", input " + to_string(graph.tensor(graph.input).spec) + "\n";
  for (const Node& node : graph.nodes) {
    text += "  " + node.name + ": " + node.type + "(";
    for (std::size_t i = 0; i < node.inputs.size(); ++i)
      text += (i == 0 ? "" : ", ") + graph.tensor(node.inputs[i]).name;
    text += ") -> " + to_string(node.info.output) + "\n";
  }
  return text;
}

}  // namespace layup
