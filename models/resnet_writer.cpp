// SPDX-License-Identifier: Apache-2.0
#include "models/resnet_writer.h"

namespace layup {
namespace {

constexpr std::int64_t kExpansion = 4;  // of a bottleneck

class ResnetWriter {
 public:
  ResnetWriter(const ResnetForm& form, const Shape& sample_shape)
      : form_(form), network_(form.name, sample_shape) {}

  Json write(const HeadOptions& head) {
    add_stem();
    for (std::size_t stage = 0; stage < form_.blocks.size(); ++stage)
      for (std::int64_t i = 0; i < form_.blocks[stage]; ++i)
        add_block("layer" + std::to_string(stage + 1) + "." + std::to_string(i) + ".",
                  form_.width << stage, stage > 0 && i == 0 ? 2 : 1);
    network_.add("avgpool", "global_avg_pool");
    network_.add("flatten", "flatten");
    network_.add("fc", "linear", {{"out_features", head.classes}});
    add_loss(network_, head);
    return network_.take();
  }

 private:
  void add_stem() {
    channels_ = form_.width;
    add_same_conv(network_, "conv1", channels_, form_.is_cifar ? 3 : 7, form_.is_cifar ? 1 : 2);
    network_.add("bn1", "batch_norm");
    network_.add("relu", "relu");
    if (!form_.is_cifar)
      network_.add("maxpool", "max_pool2d", {{"kernel", 3}, {"stride", 2}, {"padding", 1}});
  }

  // `planes`: channels inside the block, before they are widened.
  void add_block(const std::string& prefix, std::int64_t planes, int stride) {
    const std::string input = network_.last();
    const std::int64_t out_channels = form_.is_bottleneck ? planes * kExpansion : planes;
    const std::int64_t inside = form_.is_bottleneck ? planes * form_.bottleneck_widen : planes;
    const int num_convs = form_.is_bottleneck ? 3 : 2;
    for (int i = 1; i <= num_convs; ++i) {
      const bool is_last = i == num_convs;
      const int kernel = form_.is_bottleneck && i != 2 ? 1 : 3;
      const bool has_stride = form_.is_bottleneck ? i == 2 : i == 1;
      const std::string number = std::to_string(i);
      add_same_conv(network_, prefix + "conv" + number, is_last ? out_channels : inside, kernel,
                    has_stride ? stride : 1);
      Json params = Json::object();
      if (is_last && form_.zero_init_residual) params["weight_init"] = 0;
      network_.add(prefix + "bn" + number, "batch_norm", params);
      if (!is_last) network_.add(prefix + "relu" + number, "relu");
    }
    const std::string main_branch = network_.last();
    std::string shortcut = input;
    if (stride != 1 || channels_ != out_channels) {
      add_same_conv(network_, prefix + "downsample.0", out_channels, 1, stride, {input});
      shortcut = network_.add(prefix + "downsample.1", "batch_norm");
    }
    network_.add(prefix + "add", "add", Json::object(), {main_branch, shortcut});
    network_.add(prefix + "relu" + std::to_string(num_convs), "relu");
    channels_ = out_channels;
  }

  const ResnetForm& form_;
  NetworkWriter network_;
  std::int64_t channels_ = 0;  // of the layer written last
};

}  // namespace

Json write_resnet(const ResnetForm& form, const Shape& sample_shape, const HeadOptions& head) {
  return ResnetWriter(form, sample_shape).write(head);
}

}  // namespace layup
