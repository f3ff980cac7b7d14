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

}  // namespace layup
