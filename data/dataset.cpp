// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

namespace layup {

#define LAYUP_LIST_ITEM(name) DatasetFormat name##_format();
#include "data/format_list.inc"
#undef LAYUP_LIST_ITEM

const std::vector<DatasetFormat>& builtin_dataset_formats() {
  static const std::vector<DatasetFormat> formats = {
#define LAYUP_LIST_ITEM(name) name##_format(),
#include "data/format_list.inc"
#undef LAYUP_LIST_ITEM
  };
  return formats;
}

const DatasetFormat* find_dataset_format(std::string_view name) {
  for (const DatasetFormat& format : builtin_dataset_formats())
    if (format.name == name) return &format;
  return nullptr;
}

DatasetSplits open_dataset(JsonReader& data, const DatasetOptions& options) {
  std::vector<std::string> names;
  for (const DatasetFormat& format : builtin_dataset_formats()) names.push_back(format.name);
  const std::size_t errors_before = data.errors().lines().size();
  const std::string name = data.require_choice("format", names);
  if (data.errors().lines().size() == errors_before)
    return find_dataset_format(name)->open(data, options);
  // Which keys belong here depends on the format; do not call them unknown on top.
  if (const JsonNode::Object* members = data.node().object())
    for (const auto& member : *members) data.has(member.first);
  return {};
}

}  // namespace layup
