// SPDX-License-Identifier: Apache-2.0
// DenseNet with bottlenecks and compression (DenseNet-BC), named and initialised as in torchvision.
//
//   conv 7x7/2 - batch norm - ReLU - max-pool 3x3/2 - four blocks of dense layers, between them
//   batch norm - ReLU - conv 1x1 to half the channels - average-pool 2x2/2 - and at the end
//   batch norm - ReLU - global average - linear
//
// A dense layer is batch norm - ReLU - conv 1x1 to 4 * "growth" channels - batch norm - ReLU -
// conv 3x3 to "growth" channels; it reads all features of its block side by side, those that it
// came with and those of all layers before. "depth" 121, 161 (growth 48), 169, 201 (growth 32), or
// "blocks": [n1, n2, n3, n4] with "growth" (32).
//
// Each layer's concatenation reads the features themselves and not the concatenation before it, so
// that it can be computed again without any other: keeping the features alone takes memory
// linear in the depth (Pleiss et al. 2017, arXiv:1707.06990, section 3).
//
// Source: Huang, Liu, van der Maaten and Weinberger 2017, arXiv:1608.06993, table 1.
#include "models/network_writer.h"

namespace layup {
namespace {

constexpr std::int64_t kLeastImage = 32;  // one pixel at the end
constexpr std::int64_t kInside = 4;       // channels inside a dense layer, by growth
constexpr std::int64_t kMostLayers = 10'000;
constexpr std::int64_t kMostGrowth = 65'536;

struct DensenetOptions {
  std::string name = "densenet";
  std::int64_t growth = 32;
  std::vector<std::int64_t> blocks = {1, 1, 1, 1};
  double dropout = 0;
};

struct KnownDepth {
  std::int64_t depth;
  std::int64_t growth;
  std::vector<std::int64_t> blocks;
};

const std::vector<KnownDepth>& known_depths() {
  static const std::vector<KnownDepth> depths = {{121, 32, {6, 12, 24, 16}},
                                                 {161, 48, {6, 12, 36, 24}},
                                                 {169, 32, {6, 12, 32, 32}},
                                                 {201, 32, {6, 12, 48, 32}}};
  return depths;
}

void read_blocks(JsonReader& model, DensenetOptions& options) {
  options.growth = model.get_int("growth", options.growth, {.min = 1, .max = kMostGrowth});
  const auto blocks = model.get_int_list("blocks", {.min = 1, .max = kMostLayers});
  if (blocks.size() == options.blocks.size()) {
    options.blocks = blocks;
  } else {
    model.fail("blocks", "expected four counts of dense layers, as in [6, 12, 24, 16]");
  }
  for (const std::int64_t count : options.blocks) options.name += "_" + std::to_string(count);
}

DensenetOptions read_densenet_options(JsonReader& model) {
  DensenetOptions options;
  options.dropout = read_dropout(model, 0);
  if (model.has("blocks")) {
    if (model.has("depth")) model.fail("blocks", "give \"depth\" or \"blocks\", not both");
    read_blocks(model, options);
    return options;
  }
  if (!model.has("depth")) {
    model.fail("", "\"depth\" (121, 161, 169 or 201) or \"blocks\" is missing");
    return options;
  }
  const std::int64_t depth = model.require_int("depth", {.min = 1});
  options.name += std::to_string(depth);
  for (const KnownDepth& known : known_depths()) {
    if (known.depth != depth) continue;
    options.growth = known.growth;
    options.blocks = known.blocks;
    return options;
  }
  model.fail("depth",
             "densenet has a depth of 121, 161, 169 or 201; \"blocks\": [n1, n2, n3, n4] with "
             "\"growth\" takes any number of dense layers");
  return options;
}

class DensenetWriter {
 public:
  DensenetWriter(const DensenetOptions& options, const Shape& sample_shape)
      : options_(options), network_(options.name, sample_shape) {}

  Json write(const HeadOptions& head) {
    const std::string prefix = "features.";
    channels_ = 2 * options_.growth;
    add_conv(prefix + "conv0", channels_, 7, 2);
    add_norm_relu(prefix + "norm0", prefix + "relu0");
    network_.add(prefix + "pool0", "max_pool2d", {{"kernel", 3}, {"stride", 2}, {"padding", 1}});
    for (std::size_t i = 0; i < options_.blocks.size(); ++i) {
      const std::string number = std::to_string(i + 1);
      add_block(prefix + "denseblock" + number + ".", options_.blocks[i]);
      if (i + 1 < options_.blocks.size()) add_transition(prefix + "transition" + number + ".");
    }
    add_norm_relu(prefix + "norm5", "relu");
    network_.add("avgpool", "global_avg_pool");
    network_.add("flatten", "flatten");
    network_.add("classifier", "linear",
                 {{"out_features", head.classes}, {"bias_init", zero_init()}});
    add_loss(network_, head);
    return network_.take();
  }

 private:
  void add_conv(const std::string& name, std::int64_t channels, int kernel, int stride = 1) {
    Json params = {{"out_channels", channels}, {"kernel", kernel}};
    if (stride > 1) params["stride"] = stride;
    if (kernel > 1) params["padding"] = kernel / 2;
    params["bias"] = false;
    params["init"] = "kaiming_normal";
    network_.add(name, "conv2d", params);
  }

  void add_norm_relu(const std::string& norm, const std::string& relu) {
    network_.add(norm, "batch_norm");
    network_.add(relu, "relu");
  }

  void add_block(const std::string& prefix, std::int64_t num_layers) {
    std::vector<std::string> features = {network_.last()};
    for (std::int64_t i = 1; i <= num_layers; ++i) {
      const std::string layer = prefix + "denselayer" + std::to_string(i) + ".";
      if (i > 1) network_.add(layer + "concat", "concat", Json::object(), features);
      add_norm_relu(layer + "norm1", layer + "relu1");
      add_conv(layer + "conv1", kInside * options_.growth, 1);
      add_norm_relu(layer + "norm2", layer + "relu2");
      add_conv(layer + "conv2", options_.growth, 3);
      if (options_.dropout > 0)
        network_.add(layer + "dropout", "dropout", {{"p", options_.dropout}});
      features.push_back(network_.last());
    }
    network_.add(prefix + "concat", "concat", Json::object(), features);
    channels_ += num_layers * options_.growth;
  }

  void add_transition(const std::string& prefix) {
    channels_ /= 2;
    add_norm_relu(prefix + "norm", prefix + "relu");
    add_conv(prefix + "conv", channels_, 1);
    network_.add(prefix + "pool", "avg_pool2d", {{"kernel", 2}, {"stride", 2}});
  }

  const DensenetOptions& options_;
  NetworkWriter network_;
  std::int64_t channels_ = 0;  // of the features so far
};

Json build_densenet(JsonReader& model, const ModelInput& input) {
  const DensenetOptions options = read_densenet_options(model);
  const HeadOptions head = read_head_options(model, input);
  model.finish();
  if (!check_image(model, input, kLeastImage)) return {};
  return DensenetWriter(options, input.sample_shape).write(head);
}

}  // namespace

ModelBuilder densenet_builder() { return {"densenet", build_densenet}; }

}  // namespace layup
