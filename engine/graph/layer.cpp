// SPDX-License-Identifier: Apache-2.0
#include "engine/graph/layer.h"

namespace layup {

const char* to_string(Pass pass) {
  switch (pass) {
    case Pass::forward: return "forward";
    case Pass::evaluate: return "evaluate";
    case Pass::replay: return "replay";
    case Pass::backward_params: return "backward_params";
    case Pass::backward_data: return "backward_data";
  }
  return "?";
}

const char* to_string(DeviceKind device) {
  switch (device) {
    case DeviceKind::reference: return "reference";
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::cuda: return "cuda";
  }
  return "?";
}

const LayerType* find_layer_type(const LayerTypes& types, std::string_view name) {
  for (const LayerType& type : types)
    if (type.name == name) return &type;
  return nullptr;
}

}  // namespace layup
