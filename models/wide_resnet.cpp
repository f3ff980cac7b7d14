// SPDX-License-Identifier: Apache-2.0
// Wide residual networks.
//
//   imagenet  the resnet of 50 or 101 layers whose bottlenecks have "widen" (2) times the channels
//             inside; named and initialised as in torchvision (wide_resnet50_2, wide_resnet101_2)
//   cifar     WRN-d-k: conv 3x3 - three groups of n blocks with 16k, 32k and 64k channels - batch
//             norm - ReLU - global average - linear; depth 6n+4, "widen" k (10)
//
// A block of the cifar style normalises first: batch norm - ReLU - conv 3x3 - batch norm - ReLU -
// "dropout" (0) - conv 3x3. Where it changes the number of channels, its shortcut is a 1x1
// convolution that reads the normalised input. It is named as in the usual PyTorch port
// (block1.layer.0.bn1, convShortcut) and initialised as there: convolutions Kaiming normal,
// fan_out; biases 0.
//
// Source: Zagoruyko and Komodakis 2016, arXiv:1605.07146, table 1 and section 3.
#include "models/resnet_writer.h"

namespace layup {
namespace {

constexpr std::int64_t kMostBlocks = 100'000;
constexpr std::int64_t kMostWiden = 4096;

Json build_imagenet(JsonReader& model, const ModelInput& input) {
  ResnetForm form;
  const std::int64_t depth = model.require_int("depth", {.min = 1});
  form.is_bottleneck = true;
  form.bottleneck_widen = model.get_int("widen", 2, {.min = 1, .max = kMostWiden});
  form.blocks =
      depth == 101 ? std::vector<std::int64_t>{3, 4, 23, 3} : std::vector<std::int64_t>{3, 4, 6, 3};
  form.name = "wide_resnet" + std::to_string(depth) + "_" + std::to_string(form.bottleneck_widen);
  if (model.has("depth") && depth != 50 && depth != 101)
    model.fail("depth",
               "wide_resnet has a depth of 50 or 101; \"style\": \"cifar\" takes 6n+4: 16, 28, 40");
  const HeadOptions head = read_head_options(model, input);
  model.finish();
  if (!check_image(model, input, 1)) return {};
  return write_resnet(form, input.sample_shape, head);
}

class CifarWriter {
 public:
  CifarWriter(const std::string& name, const Shape& sample_shape, double dropout)
      : network_(name, sample_shape), dropout_(dropout) {}

  Json write(std::int64_t blocks, std::int64_t widen, const HeadOptions& head) {
    constexpr std::int64_t kWidth = 16;
    add_same_conv(network_, "conv1", kWidth, 3, 1);
    channels_ = kWidth;
    for (int group = 0; group < 3; ++group)
      for (std::int64_t i = 0; i < blocks; ++i)
        add_block("block" + std::to_string(group + 1) + ".layer." + std::to_string(i) + ".",
                  (kWidth << group) * widen, group > 0 && i == 0 ? 2 : 1);
    add_norm_relu("bn1", "relu");
    network_.add("avgpool", "global_avg_pool");
    network_.add("flatten", "flatten");
    network_.add("fc", "linear", {{"out_features", head.classes}, {"bias_init", zero_init()}});
    add_loss(network_, head);
    return network_.take();
  }

 private:
  void add_norm_relu(const std::string& norm, const std::string& relu) {
    network_.add(norm, "batch_norm");
    network_.add(relu, "relu");
  }

  void add_block(const std::string& prefix, std::int64_t channels, int stride) {
    std::string shortcut = network_.last();
    add_norm_relu(prefix + "bn1", prefix + "relu1");
    const std::string normalised = network_.last();
    add_same_conv(network_, prefix + "conv1", channels, 3, stride);
    add_norm_relu(prefix + "bn2", prefix + "relu2");
    if (dropout_ > 0) network_.add(prefix + "dropout", "dropout", {{"p", dropout_}});
    const std::string main_branch = add_same_conv(network_, prefix + "conv2", channels, 3, 1);
    if (channels != channels_)
      shortcut =
          add_same_conv(network_, prefix + "convShortcut", channels, 1, stride, {normalised});
    network_.add(prefix + "add", "add", Json::object(), {main_branch, shortcut});
    channels_ = channels;
  }

  NetworkWriter network_;
  double dropout_;
  std::int64_t channels_ = 0;  // of the layer written last
};

Json build_cifar(JsonReader& model, const ModelInput& input) {
  const std::int64_t depth = model.require_int("depth", {.min = 1, .max = 6 * kMostBlocks + 4});
  const std::int64_t widen = model.get_int("widen", 10, {.min = 1, .max = kMostWiden});
  const std::int64_t blocks = (depth - 4) / 6;
  const double dropout = read_dropout(model, 0);
  if (model.has("depth") && (blocks < 1 || depth != 6 * blocks + 4))
    model.fail("depth", "a cifar wide_resnet has a depth of 6n+4: 10, 16, 22, 28, 40, ...");
  const HeadOptions head = read_head_options(model, input);
  model.finish();
  if (!check_image(model, input, 1)) return {};
  const std::string name = "wrn_" + std::to_string(depth) + "_" + std::to_string(widen);
  return CifarWriter(name, input.sample_shape, dropout)
      .write(std::max<std::int64_t>(blocks, 1), widen, head);
}

Json build_wide_resnet(JsonReader& model, const ModelInput& input) {
  const std::string style = model.get_choice("style", "imagenet", {"imagenet", "cifar"});
  return style == "cifar" ? build_cifar(model, input) : build_imagenet(model, input);
}

}  // namespace

ModelBuilder wide_resnet_builder() { return {"wide_resnet", build_wide_resnet}; }

}  // namespace layup
