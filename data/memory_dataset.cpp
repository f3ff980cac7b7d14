// SPDX-License-Identifier: Apache-2.0
#include "data/memory_dataset.h"

#include <cstring>

#include "engine/error.h"

namespace layup {

void check_label(std::int64_t label, std::int64_t classes, std::int64_t sample,
                 const std::filesystem::path& file) {
  if (label >= 0 && label < classes) return;
  throw DataError("sample " + std::to_string(sample) + " of " + file.string() + ": label " +
                  std::to_string(label) + ", but the set has " + std::to_string(classes) +
                  " classes (0 to " + std::to_string(classes - 1) + ")");
}

MemoryDataset::MemoryDataset(Shape sample_shape, std::int64_t classes,
                             std::vector<std::uint8_t> pixels, std::vector<std::uint8_t> labels)
    : sample_shape_(std::move(sample_shape)),
      classes_(classes),
      sample_bytes_(num_elements(sample_shape_)),
      pixels_(std::move(pixels)),
      labels_(std::move(labels)) {
  LAYUP_ASSERT(static_cast<std::int64_t>(pixels_.size()) ==
               checked_multiply(size(), sample_bytes_));
}

void MemoryDataset::read(std::int64_t index, std::uint8_t* pixels, std::int32_t* label) const {
  LAYUP_ASSERT(index >= 0 && index < size());
  std::memcpy(pixels, pixels_.data() + index * sample_bytes_,
              static_cast<std::size_t>(sample_bytes_));
  *label = labels_[static_cast<std::size_t>(index)];
}

}  // namespace layup
