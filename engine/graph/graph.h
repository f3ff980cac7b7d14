// SPDX-License-Identifier: Apache-2.0
// A network with all shapes known: a valid DAG in a deterministic topological order.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/graph/graph_def.h"
#include "engine/ids.h"

namespace layup {

struct Tensor {
  std::string name;                // of the layer that makes it, or "input"
  TensorSpec spec;                 // with the batch
  std::optional<NodeId> producer;  // none for the input
  std::vector<NodeId> readers;     // one entry per use, in node order
};

struct Node {
  std::string name;
  std::string type;
  std::shared_ptr<const Layer> layer;
  LayerInfo info;
  std::vector<TensorId> inputs;
  TensorId output{};
  Place place{};
};

struct Graph {
  std::string name;
  std::int64_t batch = 0;
  TensorId input{};
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;  // topological order: the file's own order where that is one
  Place place{};

  const Tensor& tensor(TensorId id) const { return tensors[index(id)]; }
  const Node& node(NodeId id) const { return nodes[index(id)]; }
  std::vector<TensorSpec> input_specs(const Node& node) const;
};

// Infers shapes. Throws GraphError naming the layer, where it stands and, when several inputs do
// not fit together, the shape chain of each branch. Ends with validate_graph.
Graph build_graph(const GraphDef& def, std::int64_t batch);

// The slow, obvious check of what build_graph promises. Throws GraphError.
void validate_graph(const Graph& graph);

// Number of trained values. Throws GraphError on overflow.
std::int64_t num_parameters(const Node& node);
std::int64_t num_parameters(const Graph& graph);
// What all losses can tell apart: the least of their numbers of classes; nullopt without a loss.
std::optional<std::int64_t> num_classes(const Graph& graph);

std::string to_string(const Graph& graph);  // a line per layer, for people and golden tests

}  // namespace layup
