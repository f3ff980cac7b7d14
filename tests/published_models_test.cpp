// SPDX-License-Identifier: Apache-2.0
// The networks of published measurements: alexnet, googlenet, densenet, inception_v4, wide_resnet.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/error.h"
#include "engine/graph/graph.h"
#include "tests/support/networks.h"

namespace layup {
namespace {

const Shape kImagenet = {3, 224, 224};
const Shape kCifar = {3, 32, 32};

Graph graph_of(const std::string& model, const Shape& sample = kImagenet,
               std::int64_t classes = 1000) {
  return build_graph(test::build_network("{\"builder\": " + model + "}", sample, classes), 1);
}

std::string error_of(const std::string& model, const Shape& sample = kImagenet) {
  try {
    graph_of(model, sample);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const Node& node_named(const Graph& graph, const std::string& name) {
  const auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                  [&](const Node& node) { return node.name == name; });
  REQUIRE_MESSAGE(found != graph.nodes.end(), name);
  return *found;
}

Shape shape_of(const Graph& graph, const std::string& name) {
  return node_named(graph, name).info.output.shape;
}

std::vector<std::string> inputs_of(const Graph& graph, const std::string& name) {
  std::vector<std::string> names;
  for (const TensorId input : node_named(graph, name).inputs)
    names.push_back(graph.tensor(input).name);
  return names;
}

// Names of layers with parameters, in order.
std::vector<std::string> weighted(const Graph& graph, const std::string& prefix) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes)
    if (!node.info.parameters.empty() && node.name.starts_with(prefix))
      names.push_back(node.name.substr(prefix.size()));
  return names;
}

using Names = std::vector<std::string>;

TEST_CASE("published parameter counts") {
  struct Expected {
    std::string model;
    std::int64_t parameters;
  };
  // torchvision's, timm's for inception_v4.
  for (const auto& [model, parameters] :
       std::vector<Expected>{{R"("alexnet")", 61'100'840},
                             {R"("googlenet")", 6'624'904},
                             {R"("googlenet", "auxiliary": true)", 13'004'888},
                             {R"("densenet", "depth": 121)", 7'978'856},
                             {R"("densenet", "depth": 161)", 28'681'000},
                             {R"("densenet", "depth": 169)", 14'149'480},
                             {R"("densenet", "depth": 201)", 20'013'928},
                             {R"("densenet", "blocks": [6, 12, 24, 16])", 7'978'856},
                             {R"("wide_resnet", "depth": 50)", 68'883'240},
                             {R"("wide_resnet", "depth": 101)", 126'886'696},
                             {R"("wide_resnet", "depth": 50, "widen": 1)", 25'557'032},  // resnet50
                             {R"("inception_v4")", 42'679'816}})
    CHECK_MESSAGE(num_parameters(graph_of(model)) == parameters, model);
  CHECK(num_parameters(graph_of(R"("inception_v4")", {3, 299, 299})) == 42'679'816);
  // Caffe's has 6x6 features from 227x227 and from 224x224.
  for (const std::int64_t size : {224, 227})
    CHECK(num_parameters(graph_of(R"("alexnet", "style": "caffe")", {3, size, size})) ==
          60'965'224);
  CHECK(num_parameters(graph_of(R"("wide_resnet", "style": "cifar", "depth": 28)", kCifar, 10)) ==
        36'479'194);
  CHECK(num_parameters(graph_of(R"("wide_resnet", "style": "cifar", "depth": 16, "widen": 8)",
                                kCifar, 10)) == 10'961'370);
}

TEST_CASE("alexnet: layers in torchvision's and in Caffe's order") {
  const Graph graph = graph_of(R"("alexnet")");
  CHECK(weighted(graph, "features.") == Names{"0", "3", "6", "8", "10"});
  CHECK(weighted(graph, "classifier.") == Names{"1", "4", "6"});
  CHECK(shape_of(graph, "flatten") == Shape{1, 256 * 6 * 6});
  CHECK(node_named(graph, "classifier.0").type == "dropout");
  CHECK(shape_of(graph_of(R"("alexnet", "dropout": 0)", {3, 96, 96}), "flatten") == Shape{1, 1024});
  // All by PyTorch's default.
  const auto& first = node_named(graph, "features.0").info.parameters;
  CHECK(first.at(1).init == Initializer{Initializer::Kind::uniform, 1 / std::sqrt(363.0)});

  const Graph caffe = graph_of(R"("alexnet", "style": "caffe")");
  CHECK(weighted(caffe, "") ==
        Names{"conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8"});
  CHECK(inputs_of(caffe, "norm1") == Names{"relu1"});
  CHECK(inputs_of(caffe, "pool1") == Names{"norm1"});
  CHECK(node_named(caffe, "conv2").info.parameters.at(0).shape == Shape{256, 48, 5, 5});
  CHECK(node_named(caffe, "conv2").info.parameters.at(1).init ==
        Initializer{Initializer::Kind::constant, 0.1});
  CHECK(node_named(caffe, "conv3").info.parameters.at(1).init == Initializer{});
  CHECK(node_named(caffe, "fc6").info.parameters.at(0).init ==
        Initializer{Initializer::Kind::normal, 0.005});
}

TEST_CASE("googlenet: branches side by side") {
  const Graph graph = graph_of(R"("googlenet")");
  CHECK(weighted(graph, "inception3a.") == Names{"branch1.conv", "branch1.bn", "branch2.0.conv",
                                                 "branch2.0.bn", "branch2.1.conv", "branch2.1.bn",
                                                 "branch3.0.conv", "branch3.0.bn", "branch3.1.conv",
                                                 "branch3.1.bn", "branch4.1.conv", "branch4.1.bn"});
  CHECK(inputs_of(graph, "inception3b.concat") ==
        Names{"inception3b.branch1.relu", "inception3b.branch2.1.relu",
              "inception3b.branch3.1.relu", "inception3b.branch4.1.relu"});
  for (const char* branch : {"1.conv", "2.0.conv", "3.0.conv", "4.0"})
    CHECK(inputs_of(graph, std::string("inception4a.branch") + branch) == Names{"maxpool3"});
  CHECK(shape_of(graph, "inception3a.concat") == Shape{1, 256, 28, 28});
  CHECK(shape_of(graph, "inception4e.concat") == Shape{1, 832, 14, 14});
  CHECK(shape_of(graph, "inception5b.concat") == Shape{1, 1024, 7, 7});
  const auto& fc = node_named(graph, "fc").info.parameters;
  CHECK(fc.at(0).init == Initializer{Initializer::Kind::normal, 0.01});
  CHECK(fc.at(1).init == Initializer{Initializer::Kind::uniform, 1 / 32.0});
}

TEST_CASE("googlenet: auxiliary classifiers read modules 4a and 4d, in training") {
  const Graph graph = graph_of(R"("googlenet", "auxiliary": true, "label_smoothing": 0.1)");
  CHECK(inputs_of(graph, "aux1.pool") == Names{"inception4a.concat"});
  CHECK(inputs_of(graph, "aux2.pool") == Names{"inception4d.concat"});
  CHECK(shape_of(graph, "aux1.pool") == Shape{1, 512, 4, 4});
  CHECK(inputs_of(graph, "avgpool") == Names{"inception5b.concat"});
  CHECK(inputs_of(graph, "inception4b.branch1.conv") == Names{"inception4a.concat"});
  CHECK(weighted(graph, "aux2.") == Names{"conv.conv", "conv.bn", "fc1", "fc2"});
  const Json main = node_named(graph, "loss").layer->params();
  const Json side = node_named(graph, "aux2.loss").layer->params();
  CHECK(side == Json{{"label_smoothing", 0.1}, {"weight", 0.3}, {"training_only", true}});
  CHECK(main == Json{{"label_smoothing", 0.1}});
  CHECK(inputs_of(graph, "loss") == Names{"fc"});
  // torchvision's order of parameters: the auxiliary ones in front of fc.
  const Names all = weighted(graph, "");
  CHECK(all.back() == "fc");
  CHECK(all[all.size() - 2] == "aux2.fc2");
}

TEST_CASE("densenet: a layer reads all features of its block") {
  const Graph graph = graph_of(R"("densenet", "depth": 121)");
  CHECK(weighted(graph, "features.denseblock1.denselayer2.") ==
        Names{"norm1", "conv1", "norm2", "conv2"});
  CHECK(weighted(graph, "features.transition1.") == Names{"norm", "conv"});
  CHECK(inputs_of(graph, "features.denseblock1.denselayer3.concat") ==
        Names{"features.pool0", "features.denseblock1.denselayer1.conv2",
              "features.denseblock1.denselayer2.conv2"});
  CHECK(shape_of(graph, "features.denseblock1.concat") == Shape{1, 256, 56, 56});
  CHECK(shape_of(graph, "features.denseblock4.concat") == Shape{1, 1024, 7, 7});
  CHECK(weighted(graph, "").back() == "classifier");
  // Kaiming normal by fan_in (3x3 of 128); PyTorch's default and 0.
  const Initializer conv =
      node_named(graph, "features.denseblock1.denselayer1.conv2").info.parameters.at(0).init;
  CHECK(conv.kind == Initializer::Kind::normal);
  CHECK(conv.scale == doctest::Approx(std::sqrt(2.0 / (128 * 9))));
  const auto& classifier = node_named(graph, "classifier").info.parameters;
  CHECK(classifier.at(0).init == Initializer{Initializer::Kind::uniform, 1 / 32.0});
  CHECK(classifier.at(1).init == Initializer{});
  const Graph dropped = graph_of(R"("densenet", "depth": 121, "dropout": 0.2)");
  CHECK(inputs_of(dropped, "features.denseblock1.denselayer2.concat").back() ==
        "features.denseblock1.denselayer1.dropout");
}

TEST_CASE("inception_v4: names and shapes of its modules") {
  const Graph graph = graph_of(R"("inception_v4")", {3, 299, 299});
  CHECK(shape_of(graph, "features.2.relu") == Shape{1, 64, 147, 147});
  CHECK(shape_of(graph, "features.3.concat") == Shape{1, 160, 73, 73});
  CHECK(shape_of(graph, "features.4.concat") == Shape{1, 192, 71, 71});
  CHECK(shape_of(graph, "features.5.concat") == Shape{1, 384, 35, 35});
  CHECK(shape_of(graph, "features.9.concat") == Shape{1, 384, 35, 35});
  CHECK(shape_of(graph, "features.10.concat") == Shape{1, 1024, 17, 17});
  CHECK(shape_of(graph, "features.17.concat") == Shape{1, 1024, 17, 17});
  CHECK(shape_of(graph, "features.18.concat") == Shape{1, 1536, 8, 8});
  CHECK(shape_of(graph, "features.21.concat") == Shape{1, 1536, 8, 8});
  CHECK(weighted(graph, "features.18.branch1.") ==
        Names{"0.conv", "0.bn", "1.conv", "1.bn", "2.conv", "2.bn", "3.conv", "3.bn"});
  CHECK(inputs_of(graph, "features.21.branch2_3b.conv") == Names{"features.21.branch2_2.relu"});
  CHECK(node_named(graph, "features.11.branch2.1.conv").info.parameters.at(0).shape ==
        Shape{192, 192, 7, 1});
  CHECK(weighted(graph, "").back() == "last_linear");
}

TEST_CASE("wide_resnet: wide inside; the cifar style normalises first") {
  const Graph wide = graph_of(R"("wide_resnet", "depth": 50)");
  CHECK(shape_of(wide, "layer1.0.conv2") == Shape{1, 128, 56, 56});
  CHECK(shape_of(wide, "layer1.0.conv3") == Shape{1, 256, 56, 56});
  const Graph graph =
      graph_of(R"("wide_resnet", "style": "cifar", "depth": 16, "widen": 4)", kCifar, 10);
  CHECK(weighted(graph, "block2.layer.0.") ==
        Names{"bn1", "conv1", "bn2", "conv2", "convShortcut"});
  CHECK(weighted(graph, "block2.layer.1.") == Names{"bn1", "conv1", "bn2", "conv2"});
  CHECK(inputs_of(graph, "block2.layer.0.convShortcut") == Names{"block2.layer.0.relu1"});
  CHECK(inputs_of(graph, "block2.layer.1.add") ==
        Names{"block2.layer.1.conv2", "block2.layer.0.add"});
  CHECK(shape_of(graph, "block3.layer.1.add") == Shape{1, 256, 8, 8});
}

TEST_CASE("published models: what is wrong is said where it stands") {
  CHECK(contains(error_of(R"("alexnet", "style": "caffee")"), "did you mean \"caffe\"?"));
  CHECK(contains(error_of(R"("alexnet")", kCifar), "at least 63x63"));
  CHECK(contains(error_of(R"("googlenet", "auxiliary": true)", {3, 79, 79}), "at least 80x80"));
  CHECK(contains(error_of(R"("densenet", "depth": 120)"), "121, 161, 169 or 201"));
  CHECK(contains(error_of(R"("densenet")"), "or \"blocks\" is missing"));
  CHECK(contains(error_of(R"("densenet", "depth": 121, "blocks": [1, 1, 1, 1])"), "not both"));
  CHECK(contains(error_of(R"("densenet", "blocks": [1, 1])"), "four counts of dense layers"));
  CHECK(contains(error_of(R"("densenet", "depth": 121, "growth": 12)"), "unknown key \"growth\""));
  CHECK(contains(error_of(R"("inception_v4")", {3, 74, 74}), "at least 75x75"));
  CHECK(contains(error_of(R"("wide_resnet", "depth": 34)"), "50 or 101"));
  CHECK(contains(error_of(R"("wide_resnet", "style": "cifar", "depth": 20)", kCifar), "6n+4"));
}

TEST_CASE("published models: the smallest images that are accepted work") {
  CHECK(shape_of(graph_of(R"("alexnet")", {3, 63, 63}), "flatten") == Shape{1, 256});
  CHECK(shape_of(graph_of(R"("alexnet", "style": "caffe")", {3, 63, 63}), "flatten") ==
        Shape{1, 256});
  CHECK(shape_of(graph_of(R"("googlenet")", kCifar), "inception5b.concat") == Shape{1, 1024, 1, 1});
  CHECK(shape_of(graph_of(R"("googlenet", "auxiliary": true)", {3, 80, 80}), "aux1.pool") ==
        Shape{1, 512, 1, 1});
  CHECK(shape_of(graph_of(R"("densenet", "depth": 121)", kCifar), "features.denseblock4.concat") ==
        Shape{1, 1024, 1, 1});
  CHECK(shape_of(graph_of(R"("inception_v4")", {3, 75, 75}), "features.21.concat") ==
        Shape{1, 1536, 1, 1});
}

}  // namespace
}  // namespace layup
