// SPDX-License-Identifier: Apache-2.0
// What most layers ask of their inputs first. All throw GraphError.
#pragma once

#include <span>
#include <string_view>

#include "engine/tensor.h"

namespace layup {

// The one float32 input of a layer that takes one.
const TensorSpec& only_input(std::string_view layer, std::span<const TensorSpec> inputs);
// The one input, and that it is [N, C, H, W].
const TensorSpec& only_image_input(std::string_view layer, std::span<const TensorSpec> inputs);

}  // namespace layup
