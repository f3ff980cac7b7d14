// SPDX-License-Identifier: Apache-2.0
#include "models/network_writer.h"

namespace layup {

NetworkWriter::NetworkWriter(std::string name, const Shape& sample_shape)
    : network_({{"name", std::move(name)},
                {"input", {{"shape", sample_shape}}},
                {"layers", Json::array()}}) {}

std::string NetworkWriter::add(const std::string& name, const std::string& type, Json params,
                               const std::vector<std::string>& inputs) {
  Json layer = {{"name", name}, {"type", type}};
  layer.update(params);
  if (!inputs.empty()) {
    layer["inputs"] = inputs;
  } else if (last_ != previous_) {
    layer["inputs"] = {last_};
  }
  network_["layers"].push_back(std::move(layer));
  last_ = previous_ = name;
  return name;
}

HeadOptions read_head_options(JsonReader& model, const ModelInput& input) {
  constexpr std::int64_t kMostClasses = 1'000'000;
  HeadOptions head;
  head.label_smoothing = model.get_number("label_smoothing", 0, {.min = 0, .max = 1});
  head.classes = model.get_int("classes", input.classes > 0 ? input.classes : 1,
                               {.min = 1, .max = kMostClasses});
  if (!model.has("classes") && input.classes <= 0) {
    model.fail("", "\"classes\" is missing, and the data does not say how many there are");
  } else if (input.classes > 0 && head.classes != input.classes) {
    model.fail("classes", "the model has " + std::to_string(head.classes) +
                              " classes but the data has " + std::to_string(input.classes) +
                              "; leave \"classes\" out to take those of the data");
  }
  return head;
}

Json loss_params(const HeadOptions& head) {
  Json params = Json::object();
  if (head.label_smoothing > 0) params["label_smoothing"] = head.label_smoothing;
  return params;
}

void add_loss(NetworkWriter& network, const HeadOptions& head) {
  network.add("loss", "softmax_cross_entropy", loss_params(head));
}

double read_dropout(JsonReader& model, double otherwise) {
  return model.get_number("dropout", otherwise, {.min = 0, .max = 1, .max_excluded = true});
}

std::string add_same_conv(NetworkWriter& network, const std::string& name, std::int64_t channels,
                          int kernel, int stride, const std::vector<std::string>& inputs) {
  Json params = {{"out_channels", channels}, {"kernel", kernel}};
  if (stride > 1) params["stride"] = stride;
  if (kernel > 1) params["padding"] = kernel / 2;
  params["bias"] = false;
  params["init"] = kaiming_fan_out();
  return network.add(name, "conv2d", params, inputs);
}

std::string add_conv_norm_relu(NetworkWriter& network, const std::string& prefix, Json conv,
                               double eps, const std::vector<std::string>& inputs) {
  conv["bias"] = false;
  network.add(prefix + ".conv", "conv2d", std::move(conv), inputs);
  network.add(prefix + ".bn", "batch_norm", {{"eps", eps}});
  return network.add(prefix + ".relu", "relu");
}

bool check_image(JsonReader& model, const ModelInput& input, std::int64_t least_size) {
  const Shape& shape = input.sample_shape;
  if (shape.size() == 3 && shape[1] >= least_size && shape[2] >= least_size) return true;
  const std::string least = std::to_string(least_size);
  model.fail("builder", "the data has samples of shape " + to_string(shape) +
                            "; this network takes images [channels, height, width] of at least " +
                            least + "x" + least);
  return false;
}

Json kaiming_fan_out() { return {{"type", "kaiming_normal"}, {"mode", "fan_out"}}; }

Json zero_init() { return {{"type", "constant"}, {"value", 0}}; }

}  // namespace layup
