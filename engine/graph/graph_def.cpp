// SPDX-License-Identifier: Apache-2.0
#include "engine/graph/graph_def.h"

#include <algorithm>
#include <unordered_map>

namespace layup {
namespace {

constexpr std::int64_t kMaxDimension = std::int64_t{1} << 40;

using NameToIndex = std::unordered_map<std::string, std::size_t>;

LayerDef read_layer(JsonReader& reader, const LayerTypes& types,
                    const std::vector<std::string>& type_names, const std::string& previous) {
  LayerDef def;
  def.name = reader.require_string("name");
  def.place = place_of(reader);
  if (def.name == kInputName)
    reader.fail("name", "the name \"input\" is taken by the network's input");
  if (reader.has("inputs")) {
    def.inputs = reader.get_string_list("inputs");
    if (def.inputs.empty()) reader.fail("inputs", "the list of inputs is empty");
  } else {
    def.inputs = {previous};
  }
  const std::size_t errors_before = reader.errors().lines().size();
  def.type = reader.require_choice("type", type_names);
  if (reader.errors().lines().size() > errors_before) return def;
  def.layer = find_layer_type(types, def.type)->read(reader);
  reader.finish();
  return def;
}

// Depth-first search for a cycle; returns the names along it.
class CycleFinder {
 public:
  CycleFinder(const std::vector<LayerDef>& layers, const NameToIndex& index_of)
      : layers_(layers), index_of_(index_of), state_(layers.size(), State::unseen) {}

  std::vector<std::string> find() {
    for (std::size_t start = 0; start < layers_.size(); ++start)
      if (state_[start] == State::unseen && visit(start)) return cycle_;
    return {};
  }

 private:
  enum class State : std::uint8_t { unseen, open, done };
  struct Frame {
    std::size_t layer;
    std::size_t next_input;
  };

  bool visit(std::size_t start) {  // iterative: networks may be thousands of layers deep
    std::vector<Frame> path = {{start, 0}};
    state_[start] = State::open;
    while (!path.empty()) {
      Frame& frame = path.back();
      const auto& inputs = layers_[frame.layer].inputs;
      if (frame.next_input == inputs.size()) {
        state_[frame.layer] = State::done;
        path.pop_back();
        continue;
      }
      const auto found = index_of_.find(inputs[frame.next_input++]);
      if (found == index_of_.end() || state_[found->second] == State::done) continue;
      if (state_[found->second] == State::open) {
        std::size_t at = path.size();
        while (path[at - 1].layer != found->second) --at;
        for (std::size_t i = path.size(); i >= at; --i)
          cycle_.push_back(layers_[path[i - 1].layer].name);
        cycle_.push_back(cycle_.front());
        return true;
      }
      state_[found->second] = State::open;
      path.push_back({found->second, 0});
    }
    return false;
  }

  const std::vector<LayerDef>& layers_;
  const NameToIndex& index_of_;
  std::vector<State> state_;
  std::vector<std::string> cycle_;
};

void check_names(const std::vector<LayerDef>& layers, std::vector<JsonReader>& readers,
                 JsonReader& network) {
  NameToIndex index_of;
  std::vector<std::string> names = {kInputName};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto [known, is_new] = index_of.emplace(layers[i].name, i);
    if (!is_new)
      readers[i].fail("name", "two layers are named \"" + layers[i].name + "\" (the other is " +
                                  readers[known->second].pointer() + ")");
    names.push_back(layers[i].name);
  }
  for (std::size_t i = 0; i < layers.size(); ++i)
    for (const std::string& input : layers[i].inputs)
      if (input != kInputName && !index_of.contains(input))
        readers[i].fail("inputs",
                        "there is no layer \"" + input + "\" to read" +
                            (did_you_mean(input, names) ? key_suggestion(input, names) : ""));
  const std::vector<std::string> cycle = CycleFinder(layers, index_of).find();
  if (cycle.empty()) return;
  std::string text;
  for (const std::string& name : cycle) text += (text.empty() ? "" : " -> ") + name;
  network.fail("layers", "the layers form a cycle: " + text);
}

}  // namespace

std::string Place::describe(const std::string& problem) const {
  if (where.empty()) return problem;
  return where + ": " + problem + " (at " + (pointer.empty() ? "/" : pointer) + ")";
}

Place place_of(const JsonReader& reader) {
  std::string where = reader.errors().file_name();
  if (reader.node().line > 0)
    where += ":" + std::to_string(reader.node().line) + ":" + std::to_string(reader.node().column);
  return {where, reader.pointer()};
}

GraphDef read_graph_def(JsonReader& network, const LayerTypes& types) {
  GraphDef def;
  def.place = place_of(network);
  def.name = network.get_string("name", "network");
  if (auto input = network.get_object("input")) {
    def.input_shape = input->get_int_list("shape", {.min = 1, .max = kMaxDimension});
    if (def.input_shape.empty())
      input->fail("shape", "\"shape\" must list the dimensions of one sample, as [3, 32, 32]");
    input->finish();
  } else if (network.node().object() != nullptr && !network.has("input")) {
    network.fail("", "\"input\" is missing; write \"input\": {\"shape\": [3, 32, 32]}");
  }
  if (!network.has("layers")) network.fail("", "\"layers\" is missing");
  std::vector<std::string> type_names;
  for (const LayerType& type : types) type_names.push_back(type.name);
  std::vector<JsonReader> readers = network.get_object_list("layers");
  if (network.has("layers") && readers.empty()) network.fail("layers", "the network has no layers");
  std::string previous = kInputName;
  for (JsonReader& reader : readers) {
    def.layers.push_back(read_layer(reader, types, type_names, previous));
    previous = def.layers.back().name;
  }
  network.finish();
  check_names(def.layers, readers, network);
  return def;
}

Json to_json(const GraphDef& def) {
  Json layers = Json::array();
  std::string previous = kInputName;
  for (const LayerDef& layer : def.layers) {
    Json item = {{"name", layer.name}, {"type", layer.type}};
    if (layer.inputs != std::vector<std::string>{previous}) item["inputs"] = layer.inputs;
    const Json params = layer.layer->params();
    for (const auto& [key, value] : params.items()) item[key] = value;
    layers.push_back(std::move(item));
    previous = layer.name;
  }
  return {{"name", def.name}, {"input", {{"shape", def.input_shape}}}, {"layers", layers}};
}

}  // namespace layup
