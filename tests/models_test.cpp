// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "engine/error.h"
#include "engine/graph/graph.h"
#include "layers/registry.h"
#include "models/builder.h"

namespace layup {
namespace {

const ModelInput kImagenet = {{3, 224, 224}, 0};
const ModelInput kCifar = {{3, 32, 32}, 10};

Json build(const std::string& text, const ModelInput& input) {
  const JsonNode node = parse_json(text, "model.json");
  JsonErrors errors("model.json");
  JsonReader reader(node, "/model", errors);
  Json network = build_model(reader, input);
  errors.throw_if_any();
  return network;
}

std::string error_of(const std::string& text, const ModelInput& input = kCifar) {
  try {
    build(text, input);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

Graph graph_of(const JsonNode& network, std::int64_t batch = 1) {
  JsonErrors errors("network");
  JsonReader reader(network, "", errors);
  const GraphDef def = read_graph_def(reader, builtin_layers());
  errors.throw_if_any();
  return build_graph(def, batch);
}

Graph graph_of(const std::string& text, const ModelInput& input) {
  return graph_of(JsonNode::from(build(text, input)));
}

std::vector<std::pair<std::string, Shape>> parameters_of(const Graph& graph) {
  std::vector<std::pair<std::string, Shape>> parameters;
  for (const Node& node : graph.nodes)
    for (const ParameterSpec& parameter : node.info.parameters)
      parameters.emplace_back(node.name + "." + parameter.name, parameter.shape);
  return parameters;
}

const Node& node_named(const Graph& graph, const std::string& name) {
  const auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                  [&](const Node& node) { return node.name == name; });
  REQUIRE_MESSAGE(found != graph.nodes.end(), name);
  return *found;
}

TEST_CASE("torchvision's parameter counts at 1000 classes") {
  struct Expected {
    std::string model;
    std::int64_t parameters;
  };
  const std::vector<Expected> expected = {
      {R"({"builder": "resnet", "depth": 18, "classes": 1000})", 11'689'512},
      {R"({"builder": "resnet", "depth": 34, "classes": 1000})", 21'797'672},
      {R"({"builder": "resnet", "depth": 50, "classes": 1000})", 25'557'032},
      {R"({"builder": "resnet", "depth": 101, "classes": 1000})", 44'549'160},
      {R"({"builder": "resnet", "depth": 152, "classes": 1000})", 60'192'808},
      {R"({"builder": "resnet", "blocks": [3, 4, 6, 3], "classes": 1000})", 25'557'032},
      {R"({"builder": "vgg", "depth": 11, "classes": 1000})", 132'863'336},
      {R"({"builder": "vgg", "depth": 13, "classes": 1000})", 133'047'848},
      {R"({"builder": "vgg", "depth": 16, "classes": 1000})", 138'357'544},
      {R"({"builder": "vgg", "depth": 16, "batch_norm": true, "classes": 1000})", 138'365'992},
      {R"({"builder": "vgg", "depth": 19, "classes": 1000})", 143'667'240}};
  for (const auto& [model, parameters] : expected)
    CHECK_MESSAGE(num_parameters(graph_of(model, kImagenet)) == parameters, model);
}

TEST_CASE("counts of the small networks") {
  // 3x3 convolutions of n blocks at 16, 32 and 64 channels, two projections, batch norms, linear.
  CHECK(num_parameters(graph_of(R"({"builder": "resnet", "style": "cifar", "depth": 20})",
                                kCifar)) == 272'474);
  CHECK(num_parameters(graph_of(R"({"builder": "lenet"})", {{1, 28, 28}, 10})) == 431'080);
}

TEST_CASE("torchvision's parameter names, shapes and order") {
  const JsonNode networks = read_json_file("tests/golden/networks.json");
  int checked = 0;
  for (const JsonNode& item : *networks.find("cases")->array()) {
    const JsonNode* model = item.find("model");
    const auto& builder = std::get<std::string>(model->find("builder")->value);
    if (find_model_builder(builder) == nullptr) continue;
    const auto image = std::get<std::int64_t>(item.find("image")->value);
    const Graph graph = graph_of(model->to_json().dump(), {{3, image, image}, 10});
    std::vector<std::pair<std::string, Shape>> expected;
    for (const JsonMember& member : *item.find("weights")->find("shapes")->object())
      expected.emplace_back(member.first, member.second.to_json().get<Shape>());
    CHECK(parameters_of(graph) == expected);
    ++checked;
  }
  CHECK(checked >= 4);
}

std::int64_t num_weighted(const Graph& graph) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
    return (node.type == "conv2d" || node.type == "linear") &&
           node.name.find("downsample") == std::string::npos;
  });
}

TEST_CASE("the depth is the number of weighted layers") {
  CHECK(num_weighted(graph_of(
            R"({"builder": "resnet", "blocks": [6, 32, 790, 6], "classes": 1000})", kImagenet)) ==
        2504);
  CHECK(num_weighted(
            graph_of(R"({"builder": "resnet", "depth": 152, "classes": 10})", kImagenet)) == 152);
  CHECK(num_weighted(graph_of(R"({"builder": "resnet", "depth": 34, "classes": 10})", kImagenet)) ==
        34);
  for (const int depth : {8, 20, 56, 110})
    CHECK(num_weighted(graph_of(
              R"({"builder": "resnet", "style": "cifar", "depth": )" + std::to_string(depth) + "}",
              kCifar)) == depth);
  for (const int depth : {11, 29, 164})
    CHECK(num_weighted(graph_of(
              R"({"builder": "resnet", "style": "cifar", "block": "bottleneck", "depth": )" +
                  std::to_string(depth) + "}",
              kCifar)) == depth);
  for (const int depth : {11, 13, 16, 19})
    CHECK(num_weighted(graph_of(R"({"builder": "vgg", "depth": )" + std::to_string(depth) + "}",
                                kCifar)) == depth);
}

TEST_CASE("shapes along the stages") {
  const Graph resnet = graph_of(R"({"builder": "resnet", "depth": 50, "classes": 7})", kImagenet);
  CHECK(node_named(resnet, "maxpool").info.output.shape == Shape{1, 64, 56, 56});
  CHECK(node_named(resnet, "layer1.2.relu3").info.output.shape == Shape{1, 256, 56, 56});
  // The stride is in the 3x3 convolution.
  CHECK(node_named(resnet, "layer2.0.conv1").info.output.shape == Shape{1, 128, 56, 56});
  CHECK(node_named(resnet, "layer2.0.conv2").info.output.shape == Shape{1, 128, 28, 28});
  CHECK(node_named(resnet, "layer4.2.relu3").info.output.shape == Shape{1, 2048, 7, 7});
  CHECK(num_classes(resnet) == 7);

  const Graph cifar = graph_of(
      R"({"builder": "resnet", "style": "cifar", "depth": 20, "width": 8})", {{1, 28, 28}, 10});
  CHECK(node_named(cifar, "relu").info.output.shape == Shape{1, 8, 28, 28});
  CHECK(node_named(cifar, "layer2.0.relu2").info.output.shape == Shape{1, 16, 14, 14});
  CHECK(node_named(cifar, "layer3.2.relu2").info.output.shape == Shape{1, 32, 7, 7});

  const Graph wide =
      graph_of(R"({"builder": "resnet", "depth": 18, "width": 128, "classes": 2})", kImagenet);
  CHECK(node_named(wide, "layer4.1.relu2").info.output.shape == Shape{1, 1024, 7, 7});
}

TEST_CASE("a block adds its main branch and its shortcut") {
  const Json network = build(R"({"builder": "resnet", "depth": 18, "classes": 2})", kImagenet);
  std::vector<std::string> names;
  Json adds = Json::object();
  for (const Json& layer : network["layers"]) {
    names.push_back(layer["name"]);
    if (layer["type"] == "add") adds[layer["name"].get<std::string>()] = layer["inputs"];
  }
  CHECK(adds["layer1.0.add"] == Json({"layer1.0.bn2", "maxpool"}));
  CHECK(adds["layer1.1.add"] == Json({"layer1.1.bn2", "layer1.0.relu2"}));
  CHECK(adds["layer2.0.add"] == Json({"layer2.0.bn2", "layer2.0.downsample.1"}));
  CHECK(adds.size() == 8);
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
  CHECK(names.back() == "loss");
}

TEST_CASE("initialisation follows torchvision") {
  const Graph resnet = graph_of(
      R"({"builder": "resnet", "depth": 18, "classes": 2, "zero_init_residual": true})", kImagenet);
  const Initializer conv = node_named(resnet, "conv1").info.parameters.at(0).init;
  CHECK(conv.kind == Initializer::Kind::normal);
  CHECK(conv.scale == doctest::Approx(std::sqrt(2.0 / (64 * 49))));
  const auto scale_of = [](const Graph& graph, const std::string& name) {
    return node_named(graph, name).info.parameters.at(0).init.scale;
  };
  CHECK(scale_of(resnet, "layer1.0.bn2") == 0);
  CHECK(scale_of(resnet, "layer1.0.bn1") == 1);
  CHECK(scale_of(resnet, "layer2.0.downsample.1") == 1);
  const Initializer fc = node_named(resnet, "fc").info.parameters.at(0).init;
  CHECK(fc.kind == Initializer::Kind::uniform);
  CHECK(fc.scale == doctest::Approx(1 / std::sqrt(512.0)));
  const Graph plain = graph_of(R"({"builder": "resnet", "depth": 18, "classes": 2})", kImagenet);
  CHECK(scale_of(plain, "layer1.0.bn2") == 1);

  const Graph vgg = graph_of(R"({"builder": "vgg", "depth": 11})", kCifar);
  const Initializer feature = node_named(vgg, "features.3").info.parameters.at(0).init;
  CHECK(feature.kind == Initializer::Kind::normal);
  CHECK(feature.scale == doctest::Approx(std::sqrt(2.0 / (128 * 9))));
  CHECK(node_named(vgg, "features.3").info.parameters.at(1).init == Initializer{});
  const auto& linear = node_named(vgg, "classifier.0").info.parameters;
  CHECK(linear.at(0).init == Initializer{Initializer::Kind::normal, 0.01});
  CHECK(linear.at(1).init == Initializer{});
}

TEST_CASE("dropout and label smoothing reach their layers") {
  const auto layer = [](const Json& network, const std::string& name) {
    for (const Json& item : network["layers"])
      if (item["name"] == name) return item;
    return Json();
  };
  const Json half = build(R"({"builder": "vgg", "depth": 11})", kCifar);
  CHECK(layer(half, "classifier.2")["p"] == 0.5);
  CHECK(layer(half, "classifier.5")["p"] == 0.5);
  const Json none = build(R"({"builder": "vgg", "depth": 11, "dropout": 0})", kCifar);
  CHECK(layer(none, "classifier.2").is_null());
  CHECK(layer(none, "classifier.6")["out_features"] == 10);
  for (const char* model : {R"("lenet")", R"("vgg", "depth": 11)", R"("resnet", "depth": 18)"}) {
    const std::string start = std::string("{\"builder\": ") + model;
    CHECK(layer(build(start + ", \"label_smoothing\": 0.1}", kCifar), "loss")["label_smoothing"] ==
          0.1);
    CHECK_FALSE(layer(build(start + "}", kCifar), "loss").contains("label_smoothing"));
  }
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("bad models are refused with position and advice") {
  const std::string misspelt = error_of(R"({"builder": "resent", "depth": 18})");
  CHECK(contains(misspelt,
                 "model.json:1:13: unknown builder \"resent\"; did you mean \"resnet\"?; known: "));
  CHECK(contains(misspelt, "lenet"));
  CHECK(misspelt.ends_with("(at /model/builder)"));
  CHECK(contains(error_of(R"({"depth": 18})"), "\"builder\" is missing"));
  CHECK(contains(error_of(R"({"builder": "resnet"})"), "or \"blocks\" is missing"));
  CHECK(contains(error_of(R"({"builder": "resnet", "depth": 19})"), ":1:32: resnet has a depth"));
  CHECK(contains(error_of(R"({"builder": "resnet", "depth": 18.5})"), "whole number"));
  CHECK(contains(error_of(R"({"builder": "resnet", "depth": 18, "blocks": [1, 1, 1, 1]})"),
                 "not both"));
  CHECK(contains(error_of(R"({"builder": "resnet", "blocks": [1, 1, 1]})"), "four counts"));
  CHECK(contains(error_of(R"({"builder": "resnet", "blocks": [1, 0, 1, 1]})"), "/blocks/1"));
  CHECK(contains(error_of(R"({"builder": "resnet", "style": "cifar", "depth": 21})"), "6n+2"));
  CHECK(contains(error_of(R"({"builder": "resnet", "style": "cifar", "depth": 2})"), "6n+2"));
  CHECK(contains(
      error_of(R"({"builder": "resnet", "style": "cifar", "block": "bottleneck", "depth": 26})"),
      "9n+2"));
  CHECK(contains(error_of(R"({"builder": "resnet", "style": "cifra", "depth": 20})"),
                 "did you mean \"cifar\"?"));
  CHECK(contains(error_of(R"({"builder": "resnet", "depth": 18, "block": "basic"})"),
                 "unknown key \"block\""));
  CHECK(contains(error_of(R"({"builder": "resnet", "depth": 18, "width": 0})"), "/model/width"));
  CHECK(contains(error_of(R"({"builder": "vgg", "depth": 12})"), "11, 13, 16 or 19"));
  CHECK(contains(error_of(R"({"builder": "vgg", "depth": 11, "dropout": 1})"), "less than 1"));
  CHECK(contains(error_of(R"({"builder": "vgg", "depth": 11, "batchnorm": true})"),
                 "did you mean \"batch_norm\"?"));
  CHECK(contains(error_of(R"({"builder": "lenet", "label_smoothing": 2})"), "label_smoothing"));
  CHECK(contains(error_of(R"({"builder": "lenet", "classes": 12})"),
                 ":1:33: the model has 12 classes but the data has 10"));
  CHECK(contains(error_of(R"({"builder": "lenet"})", {{1, 28, 28}, 0}), "\"classes\" is missing"));
  CHECK(contains(error_of(R"({"builder": "lenet"})", {{1, 15, 28}, 10}), "at least 16x16"));
  CHECK(contains(error_of(R"({"builder": "vgg", "depth": 11})", {{1, 28, 28}, 10}),
                 "at least 32x32"));
  CHECK(contains(error_of(R"({"builder": "resnet", "depth": 18})", {{784}, 10}), "[784]"));
  // All of them in one go.
  const std::string all =
      error_of(R"({"builder": "vgg", "depth": 12, "dropout": 2, "widht": 1, "classes": 3})");
  CHECK(std::count(all.begin(), all.end(), '\n') == 3);
}

TEST_CASE("the smallest images that are accepted work") {
  CHECK(node_named(graph_of(R"({"builder": "lenet"})", {{1, 16, 16}, 10}), "pool2")
            .info.output.shape == Shape{1, 50, 1, 1});
  CHECK(node_named(graph_of(R"({"builder": "vgg", "depth": 11})", kCifar), "flatten")
            .info.output.shape == Shape{1, 512});
  graph_of(R"({"builder": "resnet", "depth": 18})", {{3, 1, 1}, 10});
}

TEST_CASE("the ready-made network of the Fashion-MNIST example") {
  const Graph graph = graph_of(read_json_file("models/networks/small_cnn.json"), 128);
  CHECK(num_classes(graph) == 10);
  // 1*16*9+16, 2*16, 16*32*9+32, 2*32, 1568*128+128, 1280+10
  CHECK(num_parameters(graph) == 160 + 32 + 4640 + 64 + 200832 + 1290);
}

TEST_CASE("the builders of the ready-made configs build") {
  int built = 0;
  for (const auto& entry : std::filesystem::directory_iterator("models/configs")) {
    const JsonNode config = read_json_file(entry.path());
    const JsonNode* model = config.find("model");
    const JsonNode* data = config.find("data");
    REQUIRE(model != nullptr);
    REQUIRE(data != nullptr);
    if (model->object() == nullptr) {
      const auto& path = std::get<std::string>(model->value);
      CHECK(std::filesystem::exists(entry.path().parent_path() / path));
      continue;
    }
    const bool is_synthetic = std::get<std::string>(data->find("format")->value) == "synthetic";
    const ModelInput input = is_synthetic
                                 ? ModelInput{data->find("shape")->to_json().get<Shape>(),
                                              std::get<std::int64_t>(data->find("classes")->value)}
                                 : ModelInput{{1, 28, 28}, 10};
    CHECK(num_classes(graph_of(model->to_json().dump(), input)) == input.classes);
    ++built;
  }
  CHECK(built >= 12);
}

}  // namespace
}  // namespace layup
