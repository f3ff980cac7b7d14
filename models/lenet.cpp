// SPDX-License-Identifier: Apache-2.0
// LeNet in Caffe's form: 20 and 50 channels, 500 hidden units, ReLU after the first linear layer
// only.
//
//   conv 5x5x20 - max-pool 2 - conv 5x5x50 - max-pool 2 - linear 500 - ReLU - linear classes
//
// Source: LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document
// recognition", Proc. IEEE 1998; sizes of Caffe's examples/mnist.
#include "models/network_writer.h"

namespace layup {
namespace {

// (16 - 4) / 2 = 6, (6 - 4) / 2 = 1.
constexpr std::int64_t kLeastImage = 16;

Json build_lenet(JsonReader& model, const ModelInput& input) {
  const HeadOptions head = read_head_options(model, input);
  model.finish();
  if (!check_image(model, input, kLeastImage)) return {};
  NetworkWriter network("lenet", input.sample_shape);
  network.add("conv1", "conv2d", {{"out_channels", 20}, {"kernel", 5}});
  network.add("pool1", "max_pool2d", {{"kernel", 2}, {"stride", 2}});
  network.add("conv2", "conv2d", {{"out_channels", 50}, {"kernel", 5}});
  network.add("pool2", "max_pool2d", {{"kernel", 2}, {"stride", 2}});
  network.add("fc1", "linear", {{"out_features", 500}});
  network.add("relu1", "relu");
  network.add("fc2", "linear", {{"out_features", head.classes}});
  add_loss(network, head);
  return network.take();
}

}  // namespace

ModelBuilder lenet_builder() { return {"lenet", build_lenet}; }

}  // namespace layup
