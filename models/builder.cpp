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

const ModelBuilder* find_model_builder(std::string_view name) {
  for (const ModelBuilder& builder : builtin_model_builders())
    if (builder.name == name) return &builder;
  return nullptr;
}

Json build_model(JsonReader& model, const ModelInput& input) {
  const std::string name = model.require_string("builder");
  if (const ModelBuilder* builder = find_model_builder(name)) return builder->build(model, input);
  std::vector<std::string> names;
  for (const ModelBuilder& builder : builtin_model_builders()) names.push_back(builder.name);
  if (!name.empty())
    model.fail("builder", "unknown builder \"" + name + "\"" + suggestion(name, names));
  return {};
}

}  // namespace layup
