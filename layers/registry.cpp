// SPDX-License-Identifier: Apache-2.0
#include "layers/registry.h"

namespace layup {

#define LAYUP_LIST_ITEM(name) LayerType name##_layer();
#include "layers/layer_list.inc"
#undef LAYUP_LIST_ITEM

const LayerTypes& builtin_layers() {
  static const LayerTypes layers = {
#define LAYUP_LIST_ITEM(name) name##_layer(),
#include "layers/layer_list.inc"
#undef LAYUP_LIST_ITEM
  };
  return layers;
}

}  // namespace layup
