// SPDX-License-Identifier: Apache-2.0
// Inception-v4, named as in timm (features.0 ... features.21, last_linear) and initialised by
// PyTorch's defaults, as there.
//
//   three convolutions - modules 3a, 4a and 5a of the stem - four modules A - reduction A - seven
//   modules B - reduction B - three modules C - global average - dropout - linear
//
// Every convolution is followed by batch norm (eps 0.001) and ReLU; a module puts its branches side
// by side. Convolutions keep the size of the map where they are padded, and the stem and the
// reductions are not.
//
// Source: Szegedy, Ioffe, Vanhoucke and Alemi 2017, arXiv:1602.07261, figures 3 to 9.
#include <initializer_list>

#include "models/network_writer.h"

namespace layup {
namespace {

constexpr std::int64_t kLeastImage = 75;  // 37, 35, 17, 15, 7, 3, 1
constexpr double kEps = 0.001;

struct Convolution {
  std::int64_t channels;
  int height, width;
  bool is_padded = true;
  int stride = 1;
};

Convolution square(std::int64_t channels, int kernel) { return {channels, kernel, kernel}; }
Convolution reducing(std::int64_t channels, int kernel, int stride) {
  return {channels, kernel, kernel, false, stride};
}

using Chain = std::initializer_list<Convolution>;

class InceptionWriter {
 public:
  explicit InceptionWriter(const Shape& sample_shape) : network_("inception_v4", sample_shape) {}

  Json write(const HeadOptions& head, double dropout) {
    add_stem();
    for (int i = 0; i < 4; ++i) add_module_a();
    add_reduction({{384, 3, 3, false, 2}}, {square(192, 1), square(224, 3), reducing(256, 3, 2)});
    for (int i = 0; i < 7; ++i) add_module_b();
    add_reduction({square(192, 1), reducing(192, 3, 2)},
                  {square(256, 1), {256, 1, 7}, {320, 7, 1}, reducing(320, 3, 2)});
    for (int i = 0; i < 3; ++i) add_module_c();
    network_.add("global_pool", "global_avg_pool");
    network_.add("flatten", "flatten");
    if (dropout > 0) network_.add("dropout", "dropout", {{"p", dropout}});
    network_.add("last_linear", "linear", {{"out_features", head.classes}});
    add_loss(network_, head);
    return network_.take();
  }

 private:
  std::string add_conv(const std::string& prefix, const Convolution& conv,
                       const std::string& input) {
    Json params = {{"out_channels", conv.channels}, {"kernel", {conv.height, conv.width}}};
    if (conv.stride > 1) params["stride"] = conv.stride;
    if (conv.is_padded && conv.height * conv.width > 1)
      params["padding"] = {conv.height / 2, conv.width / 2};
    return add_conv_norm_relu(network_, prefix, std::move(params), kEps, {input});
  }

  // One convolution is `prefix` itself, several are `prefix`.`first`, ...
  std::string add_branch(const std::string& prefix, std::string from, Chain chain, int first = 0) {
    if (chain.size() == 1 && first == 0) return add_conv(prefix, *chain.begin(), from);
    for (const Convolution& conv : chain)
      from = add_conv(prefix + "." + std::to_string(first++), conv, from);
    return from;
  }

  std::string next_module() { return "features." + std::to_string(num_modules_++); }
  void join(const std::string& module, const std::vector<std::string>& branches) {
    network_.add(module + ".concat", "concat", Json::object(), branches);
  }
  std::string add_max_pool(const std::string& name, const std::string& input) {
    return network_.add(name, "max_pool2d", {{"kernel", 3}, {"stride", 2}}, {input});
  }
  // The average of the neighbourhood and a 1x1 convolution.
  std::string add_pooled(const std::string& prefix, const std::string& input,
                         std::int64_t channels) {
    network_.add(prefix + ".0", "avg_pool2d",
                 {{"kernel", 3}, {"stride", 1}, {"padding", 1}, {"count_include_pad", false}},
                 {input});
    return add_branch(prefix, network_.last(), {square(channels, 1)}, 1);
  }

  void add_stem() {
    for (const Convolution& conv : {reducing(32, 3, 2), reducing(32, 3, 1), square(64, 3)})
      add_conv(next_module(), conv, network_.last());
    const std::string first = network_.last();
    const std::string module3a = next_module();
    const std::string pooled = add_max_pool(module3a + ".maxpool", first);
    join(module3a, {pooled, add_conv(module3a + ".conv", reducing(96, 3, 2), first)});

    const std::string second = network_.last();
    const std::string module4a = next_module();
    const std::string narrow =
        add_branch(module4a + ".branch0", second, {square(64, 1), reducing(96, 3, 1)});
    join(module4a,
         {narrow, add_branch(module4a + ".branch1", second,
                             {square(64, 1), {64, 1, 7}, {64, 7, 1}, reducing(96, 3, 1)})});

    const std::string third = network_.last();
    const std::string module5a = next_module();
    const std::string reduced = add_conv(module5a + ".conv", reducing(192, 3, 2), third);
    join(module5a, {reduced, add_max_pool(module5a + ".maxpool", third)});
  }

  void add_module_a() {
    const std::string input = network_.last();
    const std::string module = next_module();
    const std::string branch = module + ".branch";
    std::vector<std::string> branches;
    branches.push_back(add_branch(branch + "0", input, {square(96, 1)}));
    branches.push_back(add_branch(branch + "1", input, {square(64, 1), square(96, 3)}));
    branches.push_back(
        add_branch(branch + "2", input, {square(64, 1), square(96, 3), square(96, 3)}));
    branches.push_back(add_pooled(branch + "3", input, 96));
    join(module, branches);
  }

  void add_module_b() {
    const std::string input = network_.last();
    const std::string module = next_module();
    const std::string branch = module + ".branch";
    std::vector<std::string> branches;
    branches.push_back(add_branch(branch + "0", input, {square(384, 1)}));
    branches.push_back(add_branch(branch + "1", input, {square(192, 1), {224, 1, 7}, {256, 7, 1}}));
    branches.push_back(add_branch(
        branch + "2", input, {square(192, 1), {192, 7, 1}, {224, 1, 7}, {224, 7, 1}, {256, 1, 7}}));
    branches.push_back(add_pooled(branch + "3", input, 128));
    join(module, branches);
  }

  void add_module_c() {
    const std::string input = network_.last();
    const std::string module = next_module();
    const std::string branch = module + ".branch";
    std::vector<std::string> branches;
    branches.push_back(add_conv(branch + "0", square(256, 1), input));
    const std::string inside1 = add_conv(branch + "1_0", square(384, 1), input);
    branches.push_back(add_conv(branch + "1_1a", {256, 1, 3}, inside1));
    branches.push_back(add_conv(branch + "1_1b", {256, 3, 1}, inside1));
    add_conv(branch + "2_0", square(384, 1), input);
    add_conv(branch + "2_1", {448, 3, 1}, network_.last());
    const std::string inside2 = add_conv(branch + "2_2", {512, 1, 3}, network_.last());
    branches.push_back(add_conv(branch + "2_3a", {256, 1, 3}, inside2));
    branches.push_back(add_conv(branch + "2_3b", {256, 3, 1}, inside2));
    branches.push_back(add_pooled(branch + "3", input, 256));
    join(module, branches);
  }

  void add_reduction(Chain branch0, Chain branch1) {
    const std::string input = network_.last();
    const std::string module = next_module();
    const std::string first = add_branch(module + ".branch0", input, branch0);
    const std::string second = add_branch(module + ".branch1", input, branch1);
    join(module, {first, second, add_max_pool(module + ".branch2", input)});
  }

  NetworkWriter network_;
  int num_modules_ = 0;
};

Json build_inception_v4(JsonReader& model, const ModelInput& input) {
  const double dropout = read_dropout(model, 0.2);
  const HeadOptions head = read_head_options(model, input);
  model.finish();
  if (!check_image(model, input, kLeastImage)) return {};
  return InceptionWriter(input.sample_shape).write(head, dropout);
}

}  // namespace

ModelBuilder inception_v4_builder() { return {"inception_v4", build_inception_v4}; }

}  // namespace layup
