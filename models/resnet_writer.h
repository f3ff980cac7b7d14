// SPDX-License-Identifier: Apache-2.0
// The residual networks of resnet and wide_resnet: stem, stages of blocks, head.
//
// Where a block changes the shape, its shortcut is a 1x1 convolution with batch norm
// ("downsample"). In the file it stands behind the block's main branch, which makes the order of
// the parameters that of torchvision.
#pragma once

#include "models/network_writer.h"

namespace layup {

struct ResnetForm {
  std::string name;
  bool is_cifar = false;
  bool is_bottleneck = false;
  bool zero_init_residual = false;
  std::int64_t width = 64;            // of the stem and the first stage
  std::int64_t bottleneck_widen = 1;  // times the channels inside a bottleneck
  std::vector<std::int64_t> blocks;   // per stage
};

Json write_resnet(const ResnetForm& form, const Shape& sample_shape, const HeadOptions& head);

}  // namespace layup
