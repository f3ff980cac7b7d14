// SPDX-License-Identifier: Apache-2.0
// AlexNet in two forms.
//
//   torchvision  one column of 64, 192, 384, 256 and 256 channels, without normalisation; named and
//                initialised as there (Krizhevsky 2014, arXiv:1404.5997, section 5.1)
//   caffe        the form of the published measurements of memory: 96, 256, 384, 384 and 256
//                channels, two groups in the second, fourth and fifth convolution, LRN behind the
//                first two; names and initialisation of Caffe's bvlc_alexnet (Krizhevsky, Sutskever
//                and Hinton 2012, section 3, with max-pooling behind LRN)
//
// Neither has adaptive pooling in front of the classifier, which reads the features as they are:
// with 6x6 of them, at 224x224 (caffe: also at 227x227), the networks are the known ones.
#include "models/network_writer.h"

namespace layup {
namespace {

// torchvision: 63 -> 15 -> 7 -> 3 -> 1; caffe: 63 -> 14 -> 7 -> 3 -> 1.
constexpr std::int64_t kLeastImage = 63;
constexpr std::int64_t kHidden = 4096;

struct Convolution {
  std::int64_t channels;
  int kernel;
  int stride;
  int padding;
};

void add_torchvision(NetworkWriter& network, double dropout, std::int64_t classes) {
  int position = 0;
  const auto next_name = [&] { return "features." + std::to_string(position++); };
  const auto add_conv = [&](const Convolution& conv) {
    Json params = {{"out_channels", conv.channels}, {"kernel", conv.kernel}};
    if (conv.stride > 1) params["stride"] = conv.stride;
    params["padding"] = conv.padding;
    network.add(next_name(), "conv2d", params);
    network.add(next_name(), "relu");
  };
  const auto add_pool = [&] {
    network.add(next_name(), "max_pool2d", {{"kernel", 3}, {"stride", 2}});
  };
  add_conv({64, 11, 4, 2});
  add_pool();
  add_conv({192, 5, 1, 2});
  add_pool();
  for (const std::int64_t channels : {384, 256, 256}) add_conv({channels, 3, 1, 1});
  add_pool();
  network.add("flatten", "flatten");
  for (const int start : {0, 3}) {
    const auto name = [&](int offset) { return "classifier." + std::to_string(start + offset); };
    // A dropout of 0 would only take memory; the numbering keeps its place.
    if (dropout > 0) network.add(name(0), "dropout", {{"p", dropout}});
    network.add(name(1), "linear", {{"out_features", kHidden}});
    network.add(name(2), "relu");
  }
  network.add("classifier.6", "linear", {{"out_features", classes}});
}

// Caffe's "gaussian" weights and "constant" biases.
void put_init(Json& params, double deviation, double bias) {
  params["init"] = {{"type", "normal"}, {"std", deviation}};
  if (bias != 0) params["bias_init"] = {{"type", "constant"}, {"value", bias}};
}

void add_caffe(NetworkWriter& network, double dropout, std::int64_t classes) {
  const auto add_conv = [&](const std::string& number, const Convolution& conv, int groups,
                            double bias) {
    Json params = {{"out_channels", conv.channels}, {"kernel", conv.kernel}};
    if (conv.stride > 1) params["stride"] = conv.stride;
    if (conv.padding > 0) params["padding"] = conv.padding;
    if (groups > 1) params["groups"] = groups;
    put_init(params, 0.01, bias);
    network.add("conv" + number, "conv2d", params);
    network.add("relu" + number, "relu");
  };
  const auto add_norm = [&](const std::string& number) {
    network.add("norm" + number, "lrn", {{"size", 5}, {"alpha", 1e-4}, {"beta", 0.75}});
  };
  const auto add_pool = [&](const std::string& number) {  // Caffe rounds up
    network.add("pool" + number, "max_pool2d", {{"kernel", 3}, {"stride", 2}, {"ceil_mode", true}});
  };
  add_conv("1", {96, 11, 4, 0}, 1, 0);
  add_norm("1");
  add_pool("1");
  add_conv("2", {256, 5, 1, 2}, 2, 0.1);
  add_norm("2");
  add_pool("2");
  add_conv("3", {384, 3, 1, 1}, 1, 0);
  add_conv("4", {384, 3, 1, 1}, 2, 0.1);
  add_conv("5", {256, 3, 1, 1}, 2, 0.1);
  add_pool("5");
  network.add("flatten", "flatten");
  for (const char* number : {"6", "7"}) {
    Json params = {{"out_features", kHidden}};
    put_init(params, 0.005, 0.1);
    network.add(std::string("fc") + number, "linear", params);
    network.add(std::string("relu") + number, "relu");
    if (dropout > 0) network.add(std::string("drop") + number, "dropout", {{"p", dropout}});
  }
  Json params = {{"out_features", classes}};
  put_init(params, 0.01, 0);
  network.add("fc8", "linear", params);
}

Json build_alexnet(JsonReader& model, const ModelInput& input) {
  const bool is_caffe =
      model.get_choice("style", "torchvision", {"torchvision", "caffe"}) == "caffe";
  const double dropout = read_dropout(model, 0.5);
  const HeadOptions head = read_head_options(model, input);
  model.finish();
  if (!check_image(model, input, kLeastImage)) return {};
  NetworkWriter network(is_caffe ? "alexnet_caffe" : "alexnet", input.sample_shape);
  (is_caffe ? add_caffe : add_torchvision)(network, dropout, head.classes);
  add_loss(network, head);
  return network.take();
}

}  // namespace

ModelBuilder alexnet_builder() { return {"alexnet", build_alexnet}; }

}  // namespace layup
