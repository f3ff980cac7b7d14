// SPDX-License-Identifier: Apache-2.0
// Model builders: a few parameters become a network file (as JSON). One builder is one stem in this
// folder plus one word in the list of models/meson.build.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/json_reader.h"
#include "engine/shape.h"

namespace layup {

struct ModelInput {
  Shape sample_shape;        // [C, H, W], of the data
  std::int64_t classes = 0;  // of the data; "classes" in the model must agree if given
};

struct ModelBuilder {
  std::string name;
  // Reads the builder's keys ("builder" itself is known; calls finish()) and returns a network
  // file: {"name", "input": {"shape"}, "layers": [...]}, layers named as in torchvision's
  // state_dict, a softmax_cross_entropy last. Errors go to the reader.
  Json (*build)(JsonReader& model, const ModelInput& input) = nullptr;
};

const std::vector<ModelBuilder>& builtin_model_builders();
const ModelBuilder* find_model_builder(std::string_view name);  // null if there is none

// Reads {"builder": name, ...} and builds. Null JSON after an error that left nothing to build; all
// errors go to the reader.
Json build_model(JsonReader& model, const ModelInput& input);

}  // namespace layup
