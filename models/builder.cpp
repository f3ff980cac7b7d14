// SPDX-License-Identifier: Apache-2.0
#include "models/builder.h"

namespace layup {

#define LAYUP_LIST_ITEM(name) ModelBuilder name##_builder();
#include "models/builder_list.inc"
#undef LAYUP_LIST_ITEM

const std::vector<ModelBuilder>& builtin_model_builders() {
  static const std::vector<ModelBuilder> builders = {
#define LAYUP_LIST_ITEM(name) name##_builder(),
#include "models/builder_list.inc"
#undef LAYUP_LIST_ITEM
  };
  return builders;
}

}  // namespace layup
