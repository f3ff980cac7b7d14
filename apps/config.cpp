// SPDX-License-Identifier: Apache-2.0
#include "apps/config.h"

#include <algorithm>
#include <charconv>

#include "data/batch_loader.h"
#include "engine/error.h"
#include "layers/registry.h"
#include "memory/policy.h"
#include "models/builder.h"

namespace layup {
namespace {

constexpr IntRange kPositive{.min = 1};
constexpr IntRange kNotNegative{.min = 0};

// Of a value that does not stand in the file.
void forget_positions(JsonNode& node) {
  node.line = node.column = 0;
  if (auto* items = std::get_if<JsonNode::Array>(&node.value))
    for (JsonNode& item : *items) forget_positions(item);
  if (auto* members = std::get_if<JsonNode::Object>(&node.value))
    for (JsonMember& member : *members) {
      member.key_line = member.key_column = 0;
      forget_positions(member.second);
    }
}

void apply(JsonNode& root, const Override& change, JsonErrors& errors) {
  const std::string where = "--set " + change.path + "=" + change.value;
  JsonNode* node = &root;
  std::string pointer;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t dot = change.path.find('.', begin);
    const std::string key = change.path.substr(begin, dot - begin);
    if (key.empty()) throw ConfigError(where + ": write it as path=value, as train.batch=32");
    pointer = child_pointer(pointer, key);
    if (auto* items = std::get_if<JsonNode::Array>(&node->value)) {
      std::size_t at = items->size();
      std::from_chars(key.data(), key.data() + key.size(), at);
      if (at >= items->size()) throw ConfigError(where + ": the list has no item " + key);
      node = &(*items)[at];
    } else {
      if (node->object() == nullptr) node->value = JsonNode::Object{};
      auto& members = std::get<JsonNode::Object>(node->value);
      node = node->find(key);
      if (node == nullptr) node = &members.emplace_back(key, JsonNode{}).second;
    }
    if (dot == std::string::npos) break;
    begin = dot + 1;
  }
  try {
    *node = parse_json(change.value, where);
  } catch (const ConfigError&) {  // a bare string
    *node = JsonNode{change.value, 0, 0};
  }
  forget_positions(*node);
  errors.note_origin(pointer, where);
}

TrainOptions read_train(JsonReader& root) {
  TrainOptions train;
  auto reader = root.get_object("train");
  if (!reader) {
    if (!root.has("train")) root.fail("", "\"train\" is missing");
    return train;
  }
  const JsonNode* batch = reader->get_node("batch");
  const auto* word = batch == nullptr ? nullptr : std::get_if<std::string>(&batch->value);
  if (word == nullptr || *word != "auto")
    train.batch = reader->require_int("batch", {.min = 1, .max = 1 << 24});
  train.micro_batch = reader->get_int("micro_batch", 0, {.min = 1, .max = 1 << 24});
  train.clip_norm = reader->get_number("clip_norm", 0, {.min = 0, .min_excluded = true});
  train.kernels.winograd = reader->get_bool("winograd", train.kernels.winograd);
  if (reader->get_choice("precision", "float32", {"float32", "bf16"}) == "bf16")
    train.kernels.precision = Precision::bf16;
  train.epochs = reader->get_int("epochs", train.epochs, {.min = 1, .max = 1 << 24});
  train.seed = static_cast<std::uint64_t>(reader->get_int("seed", 0, kNotNegative));
  if (auto checkpoint = reader->get_object("checkpoint")) {
    CheckpointOptions& options = train.checkpoint;
    options.every_steps = checkpoint->get_int("every_steps", 0, kNotNegative);
    options.every_epochs =
        checkpoint->get_int("every_epochs", options.every_steps > 0 ? 0 : 1, kNotNegative);
    options.keep = checkpoint->get_int("keep", options.keep, kPositive);
    checkpoint->finish();
  }
  reader->finish();
  return train;
}

std::filesystem::path find_file(const std::filesystem::path& path,
                                const std::filesystem::path& base) {
  if (path.is_absolute() || !std::filesystem::exists(base / path)) return path;
  return base / path;
}

// "file:FOLDER". Whether the folder will do is for the run to find out: a plan needs none.
std::filesystem::path read_spill(JsonReader& reader, const std::filesystem::path& base) {
  constexpr std::string_view kPrefix = "file:";
  const JsonNode* node = reader.get_node("spill");
  const auto* text = std::get_if<std::string>(&node->value);
  if (text == nullptr) {
    reader.require_string("spill");
  } else if (text->starts_with(kPrefix) && text->size() > kPrefix.size()) {
    return find_file(text->substr(kPrefix.size()), base);
  } else {
    reader.fail("spill", "\"" + *text + "\" is no place to spill to; write it as \"file:FOLDER\"");
  }
  return {};
}

MemoryOptions read_memory(JsonReader& root, const std::filesystem::path& base) {
  MemoryOptions memory;
  auto reader = root.get_object("memory");
  if (!reader) return memory;
  if (reader->has("policy")) memory.policy = reader->require_choice("policy", plannable_names());
  memory.budget_bytes = reader->get_bytes("budget");
  memory.host_budget_bytes = reader->get_bytes("host_budget");
  memory.updates_inside_backward = reader->get_bool("updates_inside_backward", true);
  if (reader->has("spill")) memory.spill = read_spill(*reader, base);
  reader->finish();
  return memory;
}

GraphDef read_network_file(const std::filesystem::path& path, JsonErrors& errors) {
  try {
    const JsonNode root = read_json_file(path);
    JsonErrors own(path.string());
    JsonReader reader(root, "", own);
    GraphDef def = read_graph_def(reader, builtin_layers());
    errors.append(own);
    return def;
  } catch (const ConfigError& error) {  // its syntax, which must not hide errors elsewhere
    errors.append(error);
    return {};
  }
}

GraphDef read_built_network(JsonReader& model, const ModelInput& input) {
  const Json network = build_model(model, input);
  if (!network.is_object() || !model.errors().empty()) return {};
  const JsonNode node = JsonNode::from(network);
  JsonErrors errors("the network of the builder");
  JsonReader reader(node, "", errors);
  GraphDef def = read_graph_def(reader, builtin_layers());
  errors.throw_if_any();
  // What is wrong with its shapes is wrong with what the builder was told.
  def.place = place_of(model);
  for (LayerDef& layer : def.layers) layer.place = def.place;
  return def;
}

// "model": a builder, the path of a network file, or a network in place.
GraphDef read_model(JsonReader& root, const ModelInput& data, const std::filesystem::path& base) {
  const JsonNode* node = root.get_node("model");
  if (node == nullptr) {
    root.fail("", "\"model\" is missing");
    return {};
  }
  if (const auto* path = std::get_if<std::string>(&node->value)) {
    const std::filesystem::path found = find_file(*path, base);
    if (std::filesystem::is_regular_file(found)) return read_network_file(found, root.errors());
    root.fail("model", "there is no network file \"" + *path + "\"");
    return {};
  }
  JsonReader model(*node, "/model", root.errors());
  if (node->object() == nullptr) return {};
  if (!model.has("builder") && (model.has("layers") || model.has("input")))
    return read_graph_def(model, builtin_layers());
  ModelInput input = data;
  // The model's word counts; labels are checked against it below.
  if (const JsonNode* classes = node->find("classes"))
    if (const auto* count = std::get_if<std::int64_t>(&classes->value)) input.classes = *count;
  return read_built_network(model, input);
}

// " in PATH" as the configuration has it, for messages; empty for data without files.
std::string data_name(const Json& config) {
  const Json& data = config.at("data");
  const auto path = data.find("path");
  return path == data.end() ? "" : " in " + path->get<std::string>();
}

// A label that the model has no output for, in either split: names the sample.
void check_labels(const DatasetSplits& data, const std::string& name, std::int64_t model_classes) {
  for (const Dataset* split : {data.train.get(), data.test.get()}) {
    if (split == nullptr || split->classes() <= model_classes) continue;
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(num_elements(split->sample_shape())));
    for (std::int64_t i = 0; i < split->size(); ++i) {
      std::int32_t label = 0;
      split->read(i, pixels.data(), &label);
      if (label >= model_classes)
        throw DataError("sample " + std::to_string(i) + " of the " +
                        (split == data.train.get() ? "training" : "test") + " set" + name +
                        ": label " + std::to_string(label) + ", but the model has " +
                        std::to_string(model_classes) + " classes (0 to " +
                        std::to_string(model_classes - 1) + ")");
    }
  }
}

void check_fit(const GraphDef& network, const DatasetSplits& data, const std::string& name) {
  if (network.input_shape != data.train->sample_shape())
    throw GraphError(network.place.describe(
        "the network reads samples of shape " + to_string(network.input_shape) +
        " but the data set has " + to_string(data.train->sample_shape())));
  const Graph graph = build_graph(network, 2);
  const auto classes = num_classes(graph);
  if (!classes)
    throw GraphError(network.place.describe(
        "the network has no loss; end it with a layer of type \"softmax_cross_entropy\""));
  check_labels(data, name, *classes);
}

}  // namespace

std::int64_t RunConfig::steps_per_epoch() const {
  return batches_per_epoch(data.train->size(), train.batch, data_options.drop_last);
}

std::int64_t RunConfig::last_batch() const {
  return data_options.drop_last ? 0 : data.train->size() % train.batch;
}

LrSchedule RunConfig::schedule() const {
  return solver.schedule.resolve(steps_per_epoch(), total_steps());
}

RunConfig read_config(const std::filesystem::path& file, const std::vector<Override>& overrides) {
  JsonNode root = read_json_file(file);
  JsonErrors errors(file.string());
  for (const Override& change : overrides) apply(root, change, errors);
  JsonReader reader(root, "", errors);
  RunConfig config;
  config.file = file;
  config.json = root.to_json();
  config.train = read_train(reader);
  const std::filesystem::path base = file.parent_path();
  config.memory = read_memory(reader, base);
  if (auto solver = reader.get_object("solver"))
    config.solver = read_solver(*solver);
  else if (!reader.has("solver"))
    reader.fail("", "\"solver\" is missing");

  // Without data the model is read all the same, for its errors: of any input that fits all models.
  ModelInput input{{3, 224, 224}, 1000};
  std::exception_ptr data_failure;
  if (auto data = reader.get_object("data")) {
    try {
      config.data = open_dataset(*data, {base, config.train.seed});
    } catch (const DataError&) {
      data_failure = std::current_exception();
    }
    if (config.data.train)
      input = {config.data.train->sample_shape(), config.data.train->classes()};
    config.data_options = read_data_options(*data, config.data.train ? input.sample_shape[0] : 0);
  } else if (!reader.has("data")) {
    reader.fail("", "\"data\" is missing");
  }
  config.network = read_model(reader, input, base);
  reader.finish();
  errors.throw_if_any();
  if (data_failure) std::rethrow_exception(data_failure);
  check_fit(config.network, config.data, data_name(config.json));
  if (config.train.batch > 0 && config.steps_per_epoch() == 0)
    errors.add(root.find("data")->find("drop_last"), "/data/drop_last",
               "\"drop_last\" leaves no batch: the training set has " +
                   std::to_string(config.data.train->size()) + " samples, the batch is " +
                   std::to_string(config.train.batch));
  errors.throw_if_any();
  return config;
}

}  // namespace layup
