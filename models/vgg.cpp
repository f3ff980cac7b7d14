// SPDX-License-Identifier: Apache-2.0
// VGG with 11, 13, 16 or 19 weighted layers, named and initialised as in torchvision: 3x3
// convolutions with bias (Kaiming normal, fan_out; bias 0), linear layers normal with deviation
// 0.01, optionally batch norm after each convolution.
//
// Source: Simonyan and Zisserman 2015, arXiv:1409.1556, table 1, columns A, B, D and E.
// Differs from torchvision: no adaptive pooling in front of the classifier, which reads the
// features as they are, so that at 224x224 the networks are the same.
#include <array>

#include "models/network_writer.h"

namespace layup {
namespace {

constexpr std::int64_t kLeastImage = 32;  // five poolings of two
constexpr int kStages = 5;
constexpr std::array<int, kStages> kChannels = {64, 128, 256, 512, 512};

struct VggOptions {
  std::int64_t depth = 16;
  bool has_batch_norm = false;
  double dropout = 0.5;
};

// Convolutions per stage.
std::array<int, kStages> stages_of(std::int64_t depth) {
  switch (depth) {
    case 11: return {1, 1, 2, 2, 2};
    case 13: return {2, 2, 2, 2, 2};
    case 16: return {2, 2, 3, 3, 3};
    default: return {2, 2, 4, 4, 4};
  }
}

VggOptions read_vgg_options(JsonReader& model) {
  VggOptions options;
  options.depth = model.require_int("depth", {.min = 1});
  const bool known =
      options.depth == 11 || options.depth == 13 || options.depth == 16 || options.depth == 19;
  if (model.has("depth") && !known) model.fail("depth", "vgg has a depth of 11, 13, 16 or 19");
  options.has_batch_norm = model.get_bool("batch_norm", false);
  options.dropout = read_dropout(model, 0.5);
  return options;
}

void add_features(NetworkWriter& network, const VggOptions& options) {
  int position = 0;
  const auto next_name = [&] { return "features." + std::to_string(position++); };
  const std::array<int, kStages> stages = stages_of(options.depth);
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    for (int i = 0; i < stages[stage]; ++i) {
      network.add(next_name(), "conv2d",
                  {{"out_channels", kChannels[stage]},
                   {"kernel", 3},
                   {"padding", 1},
                   {"init", kaiming_fan_out()}});
      if (options.has_batch_norm) network.add(next_name(), "batch_norm");
      network.add(next_name(), "relu");
    }
    network.add(next_name(), "max_pool2d", {{"kernel", 2}, {"stride", 2}});
  }
}

void add_classifier(NetworkWriter& network, const VggOptions& options, std::int64_t classes) {
  const Json init = {{"type", "normal"}, {"std", 0.01}};
  const auto add_hidden = [&](int position) {
    const auto name = [&](int offset) { return "classifier." + std::to_string(position + offset); };
    network.add(name(0), "linear", {{"out_features", 4096}, {"init", init}});
    network.add(name(1), "relu");
    // A dropout of 0 would only take memory; the numbering keeps its place.
    if (options.dropout > 0) network.add(name(2), "dropout", {{"p", options.dropout}});
  };
  network.add("flatten", "flatten");
  add_hidden(0);
  add_hidden(3);
  network.add("classifier.6", "linear", {{"out_features", classes}, {"init", init}});
}

Json build_vgg(JsonReader& model, const ModelInput& input) {
  const VggOptions options = read_vgg_options(model);
  const HeadOptions head = read_head_options(model, input);
  model.finish();
  if (!check_image(model, input, kLeastImage)) return {};
  NetworkWriter network(
      "vgg" + std::to_string(options.depth) + (options.has_batch_norm ? "_bn" : ""),
      input.sample_shape);
  add_features(network, options);
  add_classifier(network, options, head.classes);
  add_loss(network, head);
  return network.take();
}

}  // namespace

ModelBuilder vgg_builder() { return {"vgg", build_vgg}; }

}  // namespace layup
