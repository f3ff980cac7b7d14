// SPDX-License-Identifier: Apache-2.0
// Residual networks, named and initialised as in torchvision.
//
//   imagenet  conv 7x7/2 - batch norm - ReLU - max-pool 3x3/2 - four stages of blocks with `width`
//             (64) times 1, 2, 4, 8 channels - global average - linear. "depth" 18 or 34 (basic
//             blocks), 50, 101 or 152 (bottlenecks), or "blocks": [n1, n2, n3, n4] bottlenecks.
//   cifar     conv 3x3 - batch norm - ReLU - three stages with `width` (16) times 1, 2, 4 channels
//   -
//             global average - linear. Depth 6n+2 with basic blocks, 9n+2 with bottlenecks.
//
// Where a block changes the shape, its shortcut is a 1x1 convolution with batch norm
// ("downsample"). In the file it stands behind the block's main branch, which makes the order of
// the parameters that of torchvision.
//
// Source: He, Zhang, Ren and Sun 2016, arXiv:1512.03385, table 1 and section 4.2.
// Differs as torchvision does: the stride of a bottleneck is in its 3x3 convolution. Projection
// shortcuts in the cifar style, too (the paper pads with zeros there).
#include "models/network_writer.h"

namespace layup {
namespace {

constexpr std::int64_t kMostBlocks = 100'000;
constexpr std::int64_t kMostWidth = 65'536;
constexpr std::int64_t kExpansion = 4;  // of a bottleneck

struct ResnetOptions {
  std::string name;
  bool is_cifar = false;
  bool is_bottleneck = false;
  bool zero_init_residual = false;
  std::int64_t width = 64;
  std::vector<std::int64_t> blocks;  // per stage
};

struct KnownDepth {
  std::int64_t depth;
  bool is_bottleneck;
  std::vector<std::int64_t> blocks;
};

const std::vector<KnownDepth>& imagenet_depths() {
  static const std::vector<KnownDepth> depths = {{18, false, {2, 2, 2, 2}},
                                                 {34, false, {3, 4, 6, 3}},
                                                 {50, true, {3, 4, 6, 3}},
                                                 {101, true, {3, 4, 23, 3}},
                                                 {152, true, {3, 8, 36, 3}}};
  return depths;
}

void read_imagenet_blocks(JsonReader& model, ResnetOptions& options) {
  options.blocks = {1, 1, 1, 1};
  options.is_bottleneck = true;
  options.name = "resnet";
  if (model.has("blocks")) {
    if (model.has("depth")) model.fail("blocks", "give \"depth\" or \"blocks\", not both");
    const auto blocks = model.get_int_list("blocks", {.min = 1, .max = kMostBlocks});
    if (blocks.size() == options.blocks.size()) {
      options.blocks = blocks;
    } else {
      model.fail("blocks", "expected four counts of bottlenecks, as in [3, 4, 6, 3]");
    }
    for (const std::int64_t count : options.blocks) options.name += "_" + std::to_string(count);
    return;
  }
  if (!model.has("depth")) {
    model.fail("", "\"depth\" (18, 34, 50, 101 or 152) or \"blocks\" is missing");
    return;
  }
  const std::int64_t depth = model.require_int("depth", {.min = 1});
  options.name += std::to_string(depth);
  for (const KnownDepth& known : imagenet_depths()) {
    if (known.depth != depth) continue;
    options.is_bottleneck = known.is_bottleneck;
    options.blocks = known.blocks;
    return;
  }
  model.fail("depth",
             "resnet has a depth of 18, 34, 50, 101 or 152; \"style\": \"cifar\" takes "
             "6n+2, and \"blocks\": [n1, n2, n3, n4] any number of bottlenecks");
}

void read_cifar_blocks(JsonReader& model, ResnetOptions& options) {
  options.is_cifar = true;
  options.is_bottleneck =
      model.get_choice("block", "basic", {"basic", "bottleneck"}) == "bottleneck";
  const std::int64_t per_block = options.is_bottleneck ? 9 : 6;
  const std::int64_t depth =
      model.require_int("depth", {.min = 1, .max = per_block * kMostBlocks + 2});
  const std::int64_t count = (depth - 2) / per_block;
  if (model.has("depth") && (count < 1 || depth != count * per_block + 2))
    model.fail("depth", "a cifar resnet of " +
                            std::string(options.is_bottleneck ? "bottlenecks has a depth of 9n+2: "
                                                                "11, 20, 29, ..., 110, ..., 164"
                                                              : "basic blocks has a depth of 6n+2: "
                                                                "8, 14, 20, 32, 44, 56, 110, ..."));
  options.blocks.assign(3, std::max<std::int64_t>(count, 1));
  options.name = "resnet" + std::to_string(depth) + "_cifar";
}

ResnetOptions read_resnet_options(JsonReader& model) {
  ResnetOptions options;
  if (model.get_choice("style", "imagenet", {"imagenet", "cifar"}) == "cifar") {
    read_cifar_blocks(model, options);
  } else {
    read_imagenet_blocks(model, options);
  }
  options.width = model.get_int("width", options.is_cifar ? 16 : 64, {.min = 1, .max = kMostWidth});
  options.zero_init_residual = model.get_bool("zero_init_residual", false);
  return options;
}

class ResnetWriter {
 public:
  ResnetWriter(const ResnetOptions& options, const Shape& sample_shape)
      : options_(options), network_(options.name, sample_shape) {}

  Json write(const HeadOptions& head) {
    add_stem();
    for (std::size_t stage = 0; stage < options_.blocks.size(); ++stage)
      for (std::int64_t i = 0; i < options_.blocks[stage]; ++i)
        add_block("layer" + std::to_string(stage + 1) + "." + std::to_string(i) + ".",
                  options_.width << stage, stage > 0 && i == 0 ? 2 : 1);
    network_.add("avgpool", "global_avg_pool");
    network_.add("flatten", "flatten");
    network_.add("fc", "linear", {{"out_features", head.classes}});
    add_loss(network_, head);
    return network_.take();
  }

 private:
  void add_conv(const std::string& name, std::int64_t channels, int kernel, int stride,
                const std::vector<std::string>& inputs = {}) {
    Json params = {{"out_channels", channels}, {"kernel", kernel}};
    if (stride > 1) params["stride"] = stride;
    if (kernel > 1) params["padding"] = kernel / 2;
    params["bias"] = false;
    params["init"] = kaiming_fan_out();
    network_.add(name, "conv2d", params, inputs);
  }

  void add_stem() {
    channels_ = options_.width;
    add_conv("conv1", channels_, options_.is_cifar ? 3 : 7, options_.is_cifar ? 1 : 2);
    network_.add("bn1", "batch_norm");
    network_.add("relu", "relu");
    if (!options_.is_cifar)
      network_.add("maxpool", "max_pool2d", {{"kernel", 3}, {"stride", 2}, {"padding", 1}});
  }

  // `planes`: channels inside the block.
  void add_block(const std::string& prefix, std::int64_t planes, int stride) {
    const std::string input = network_.last();
    const std::int64_t out_channels = options_.is_bottleneck ? planes * kExpansion : planes;
    const int num_convs = options_.is_bottleneck ? 3 : 2;
    for (int i = 1; i <= num_convs; ++i) {
      const bool is_last = i == num_convs;
      const int kernel = options_.is_bottleneck && i != 2 ? 1 : 3;
      const bool has_stride = options_.is_bottleneck ? i == 2 : i == 1;
      const std::string number = std::to_string(i);
      add_conv(prefix + "conv" + number, is_last ? out_channels : planes, kernel,
               has_stride ? stride : 1);
      Json params = Json::object();
      if (is_last && options_.zero_init_residual) params["weight_init"] = 0;
      network_.add(prefix + "bn" + number, "batch_norm", params);
      if (!is_last) network_.add(prefix + "relu" + number, "relu");
    }
    const std::string main_branch = network_.last();
    std::string shortcut = input;
    if (stride != 1 || channels_ != out_channels) {
      add_conv(prefix + "downsample.0", out_channels, 1, stride, {input});
      shortcut = network_.add(prefix + "downsample.1", "batch_norm");
    }
    network_.add(prefix + "add", "add", Json::object(), {main_branch, shortcut});
    network_.add(prefix + "relu" + std::to_string(num_convs), "relu");
    channels_ = out_channels;
  }

  const ResnetOptions& options_;
  NetworkWriter network_;
  std::int64_t channels_ = 0;  // of the layer written last
};

Json build_resnet(JsonReader& model, const ModelInput& input) {
  const ResnetOptions options = read_resnet_options(model);
  const HeadOptions head = read_head_options(model, input);
  model.finish();
  if (!check_image(model, input, 1)) return {};
  return ResnetWriter(options, input.sample_shape).write(head);
}

}  // namespace

ModelBuilder resnet_builder() { return {"resnet", build_resnet}; }

}  // namespace layup
