// SPDX-License-Identifier: Apache-2.0
// What a network file says: layers with their parameters read and checked, no shapes yet.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/graph/layer.h"

namespace layup {

// Where something was read, for messages.
struct Place {
  std::string where;    // "net.json:7:3"; empty without a file
  std::string pointer;  // JSON pointer in that file: "/layers/3"

  std::string describe(const std::string& problem) const;  // "net.json:7:3: ... (at /layers/3)"
};

struct LayerDef {
  std::string name;
  std::string type;
  std::vector<std::string> inputs;     // names of layers, or "input"
  std::shared_ptr<const Layer> layer;  // holds the parameters
  Place place;
};

struct GraphDef {
  std::string name;
  Shape input_shape;  // [C, H, W] or [features], without the batch
  std::vector<LayerDef> layers;
  Place place;
};

// The name under which layers refer to the network's input.
inline constexpr const char* kInputName = "input";

// Reads {"name", "input": {"shape"}, "layers": [...]}. Every mistake that shows without shapes goes
// to the reader's errors: unknown types and keys, duplicate and unknown names, cycles.
GraphDef read_graph_def(JsonReader& network, const LayerTypes& types);

// Where the reader's object stands.
Place place_of(const JsonReader& reader);

// The network file again, canonical: reading it gives the same GraphDef.
Json to_json(const GraphDef& def);

}  // namespace layup
