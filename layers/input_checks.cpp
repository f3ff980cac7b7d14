// SPDX-License-Identifier: Apache-2.0
#include "layers/input_checks.h"

#include "engine/error.h"

namespace layup {

const TensorSpec& only_input(std::string_view layer, std::span<const TensorSpec> inputs) {
  const std::string name(layer);
  if (inputs.size() != 1)
    throw GraphError(name + " takes one input, found " + std::to_string(inputs.size()));
  if (inputs[0].dtype != DType::f32)
    throw GraphError(name + " takes a float32 input, found " + to_string(inputs[0]));
  if (inputs[0].shape.empty())
    throw GraphError(name + " takes an input whose first dimension is the batch, found a scalar");
  return inputs[0];
}

const TensorSpec& only_image_input(std::string_view layer, std::span<const TensorSpec> inputs) {
  const TensorSpec& x = only_input(layer, inputs);
  if (x.shape.size() != 4)
    throw GraphError(std::string(layer) + " takes an input [N, C, H, W], found " +
                     to_string(x.shape));
  return x;
}

}  // namespace layup
