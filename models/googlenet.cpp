// SPDX-License-Identifier: Apache-2.0
// GoogLeNet (Inception v1) with batch norm, named and initialised as in torchvision.
//
//   conv 7x7/2 - max-pool - conv 1x1 - conv 3x3 - max-pool - two inception modules - max-pool -
//   five - max-pool - two - global average - dropout - linear
//
// A module puts four branches side by side: 1x1; 1x1 and 3x3; 1x1 and 3x3; max-pool and 1x1.
// With "auxiliary", two classifiers in the middle add their losses in training, 0.3 times each.
// In the file they stand behind the last module, which makes the order of the parameters that of
// torchvision; only their pooling follows at once, so that the large map is not kept for them.
//
// Source: Szegedy et al. 2015, arXiv:1409.4842, table 1 and section 5.
// Differs as torchvision does: batch norm (eps 0.001); the third branch is 3x3, not 5x5; weights
// are normal with deviation 0.01 (cut off at 200 deviations there, not at all here). Differs from
// torchvision: auxiliary classifiers pool with 5x5, stride 3, as in the paper, where torchvision
// pools adaptively to 4x4.
#include <array>

#include "models/network_writer.h"

namespace layup {
namespace {

constexpr std::int64_t kLeastImage = 32;
constexpr std::int64_t kLeastImageAuxiliary = 80;  // 5x5 maps in the middle
constexpr double kAuxiliaryWeight = 0.3;
constexpr double kAuxiliaryDropout = 0.7;
constexpr double kEps = 0.001;

Json weight_init() { return {{"type", "normal"}, {"std", 0.01}}; }

struct Module {
  const char* name;
  std::int64_t branch1;
  std::array<std::int64_t, 2> branch2, branch3;  // inside and out
  std::int64_t branch4;
};

constexpr std::array<Module, 9> kModules = {{{"3a", 64, {96, 128}, {16, 32}, 32},
                                             {"3b", 128, {128, 192}, {32, 96}, 64},
                                             {"4a", 192, {96, 208}, {16, 48}, 64},
                                             {"4b", 160, {112, 224}, {24, 64}, 64},
                                             {"4c", 128, {128, 256}, {24, 64}, 64},
                                             {"4d", 112, {144, 288}, {32, 64}, 64},
                                             {"4e", 256, {160, 320}, {32, 128}, 128},
                                             {"5a", 256, {160, 320}, {32, 128}, 128},
                                             {"5b", 384, {192, 384}, {48, 128}, 128}}};

class GooglenetWriter {
 public:
  GooglenetWriter(const Shape& sample_shape, const HeadOptions& head, double dropout,
                  bool auxiliary)
      : network_("googlenet", sample_shape),
        head_(head),
        dropout_(dropout),
        auxiliary_(auxiliary) {}

  Json write() {
    add_conv("conv1", {{"out_channels", 64}, {"kernel", 7}, {"stride", 2}, {"padding", 3}});
    add_pool("maxpool1", 3);
    add_conv("conv2", {{"out_channels", 64}, {"kernel", 1}});
    add_conv("conv3", {{"out_channels", 192}, {"kernel", 3}, {"padding", 1}});
    add_pool("maxpool2", 3);
    for (const Module& module : kModules) {
      const std::string name = module.name;
      add_module(module);
      if (name == "3b") add_pool("maxpool3", 3);
      if (name == "4e") add_pool("maxpool4", 2);
      if (auxiliary_ && (name == "4a" || name == "4d"))
        add_auxiliary_pool(name == "4a" ? "aux1." : "aux2.");
    }
    const std::string features = network_.last();
    if (auxiliary_)
      for (const char* prefix : {"aux1.", "aux2."}) add_auxiliary(prefix);
    network_.go_on_from(features);
    network_.add("avgpool", "global_avg_pool");
    network_.add("flatten", "flatten");
    if (dropout_ > 0) network_.add("dropout", "dropout", {{"p", dropout_}});
    network_.add("fc", "linear", linear(head_.classes));
    add_loss(network_, head_);
    if (auxiliary_)
      for (const char* prefix : {"aux1.", "aux2."}) add_auxiliary_loss(prefix);
    return network_.take();
  }

 private:
  static Json linear(std::int64_t out_features) {
    return {{"out_features", out_features}, {"init", weight_init()}, {"bias_init", "default"}};
  }

  std::string add_conv(const std::string& prefix, Json params,
                       const std::vector<std::string>& inputs = {}) {
    params["init"] = weight_init();
    return add_conv_norm_relu(network_, prefix, std::move(params), kEps, inputs);
  }

  void add_pool(const char* name, int kernel) {
    network_.add(name, "max_pool2d", {{"kernel", kernel}, {"stride", 2}, {"ceil_mode", true}});
  }

  void add_module(const Module& module) {
    const std::string input = network_.last();
    const std::string prefix = std::string("inception") + module.name + ".";
    std::vector<std::string> branches;
    branches.push_back(
        add_conv(prefix + "branch1", {{"out_channels", module.branch1}, {"kernel", 1}}, {input}));
    for (const int number : {2, 3}) {
      const auto& channels = number == 2 ? module.branch2 : module.branch3;
      const std::string branch = prefix + "branch" + std::to_string(number);
      add_conv(branch + ".0", {{"out_channels", channels[0]}, {"kernel", 1}}, {input});
      branches.push_back(
          add_conv(branch + ".1", {{"out_channels", channels[1]}, {"kernel", 3}, {"padding", 1}}));
    }
    network_.add(prefix + "branch4.0", "max_pool2d",
                 {{"kernel", 3}, {"stride", 1}, {"padding", 1}, {"ceil_mode", true}}, {input});
    branches.push_back(
        add_conv(prefix + "branch4.1", {{"out_channels", module.branch4}, {"kernel", 1}}));
    network_.add(prefix + "concat", "concat", Json::object(), branches);
  }

  // The module's output stays what the next layer reads.
  void add_auxiliary_pool(const std::string& prefix) {
    const std::string module = network_.last();
    network_.add(prefix + "pool", "avg_pool2d", {{"kernel", 5}, {"stride", 3}});
    network_.go_on_from(module);
  }

  void add_auxiliary(const std::string& prefix) {
    add_conv(prefix + "conv", {{"out_channels", 128}, {"kernel", 1}}, {prefix + "pool"});
    network_.add(prefix + "flatten", "flatten");
    network_.add(prefix + "fc1", "linear", linear(1024));
    network_.add(prefix + "relu", "relu");
    if (dropout_ > 0) network_.add(prefix + "dropout", "dropout", {{"p", kAuxiliaryDropout}});
    network_.add(prefix + "fc2", "linear", linear(head_.classes));
  }

  void add_auxiliary_loss(const std::string& prefix) {
    Json params = loss_params(head_);
    params["weight"] = kAuxiliaryWeight;
    params["training_only"] = true;
    network_.add(prefix + "loss", "softmax_cross_entropy", params, {prefix + "fc2"});
  }

  NetworkWriter network_;
  const HeadOptions& head_;
  double dropout_;
  bool auxiliary_;
};

Json build_googlenet(JsonReader& model, const ModelInput& input) {
  const bool auxiliary = model.get_bool("auxiliary", false);
  const double dropout = read_dropout(model, 0.2);
  const HeadOptions head = read_head_options(model, input);
  model.finish();
  if (!check_image(model, input, auxiliary ? kLeastImageAuxiliary : kLeastImage)) return {};
  return GooglenetWriter(input.sample_shape, head, dropout, auxiliary).write();
}

}  // namespace

ModelBuilder googlenet_builder() { return {"googlenet", build_googlenet}; }

}  // namespace layup
