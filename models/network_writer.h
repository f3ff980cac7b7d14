// SPDX-License-Identifier: Apache-2.0
// What the builders share: a network file written layer by layer, and the keys that all have.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/builder.h"

namespace layup {

class NetworkWriter {
 public:
  NetworkWriter(std::string name, const Shape& sample_shape);

  // Appends a layer that reads `inputs`, or last() when there are none. `params`: its keys without
  // name, type and inputs. Returns the layer's name.
  std::string add(const std::string& name, const std::string& type, Json params = Json::object(),
                  const std::vector<std::string>& inputs = {});
  // What the next layer reads: the layer added last, unless go_on_from names another one; "input"
  // before the first layer.
  const std::string& last() const { return last_; }
  void go_on_from(const std::string& layer) { last_ = layer; }
  Json take() { return std::move(network_); }

 private:
  Json network_;
  std::string last_ = "input";
  std::string previous_ = "input";  // in the file
};

// "classes" (those of the data unless given) and "label_smoothing".
struct HeadOptions {
  std::int64_t classes = 1;
  double label_smoothing = 0;
};
HeadOptions read_head_options(JsonReader& model, const ModelInput& input);

// Keys of a softmax_cross_entropy.
Json loss_params(const HeadOptions& head);
// Appends the loss, "loss".
void add_loss(NetworkWriter& network, const HeadOptions& head);

// "dropout", in [0, 1).
double read_dropout(JsonReader& model, double otherwise);

// A square convolution as residual networks have it: without bias, padded to keep the size (but for
// its stride), initialised as torchvision does. Returns its name.
std::string add_same_conv(NetworkWriter& network, const std::string& name, std::int64_t channels,
                          int kernel, int stride, const std::vector<std::string>& inputs = {});

// A convolution without bias, batch norm and ReLU: `prefix`.conv, .bn and .relu. Returns the last.
std::string add_conv_norm_relu(NetworkWriter& network, const std::string& prefix, Json conv,
                               double eps, const std::vector<std::string>& inputs = {});

// Reports images that are not [C, H, W] with H and W of at least `least_size`; false then.
bool check_image(JsonReader& model, const ModelInput& input, std::int64_t least_size);

// torchvision's initialisation of convolutions: Kaiming normal, fan_out.
Json kaiming_fan_out();
Json zero_init();

}  // namespace layup
