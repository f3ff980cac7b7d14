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
// Blocks: models/resnet_writer.h.
//
// Source: He, Zhang, Ren and Sun 2016, arXiv:1512.03385, table 1 and section 4.2.
// Differs as torchvision does: the stride of a bottleneck is in its 3x3 convolution. Projection
// shortcuts in the cifar style, too (the paper pads with zeros there).
#include "models/resnet_writer.h"

namespace layup {
namespace {

constexpr std::int64_t kMostBlocks = 100'000;
constexpr std::int64_t kMostWidth = 65'536;

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

void read_imagenet_blocks(JsonReader& model, ResnetForm& options) {
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

void read_cifar_blocks(JsonReader& model, ResnetForm& options) {
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

ResnetForm read_resnet_options(JsonReader& model) {
  ResnetForm options;
  if (model.get_choice("style", "imagenet", {"imagenet", "cifar"}) == "cifar") {
    read_cifar_blocks(model, options);
  } else {
    read_imagenet_blocks(model, options);
  }
  options.width = model.get_int("width", options.is_cifar ? 16 : 64, {.min = 1, .max = kMostWidth});
  options.zero_init_residual = model.get_bool("zero_init_residual", false);
  return options;
}

Json build_resnet(JsonReader& model, const ModelInput& input) {
  const ResnetForm options = read_resnet_options(model);
  const HeadOptions head = read_head_options(model, input);
  model.finish();
  if (!check_image(model, input, 1)) return {};
  return write_resnet(options, input.sample_shape, head);
}

}  // namespace

ModelBuilder resnet_builder() { return {"resnet", build_resnet}; }

}  // namespace layup
