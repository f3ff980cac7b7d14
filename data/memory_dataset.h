// SPDX-License-Identifier: Apache-2.0
// A data set that was read into memory as a whole; what the formats of small images share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

#include "data/dataset.h"

namespace layup {

// DataError "sample 17 of FILE: label 10, but the set has 10 classes (0 to 9)". `sample` counts
// within the file, from 0.
void check_label(std::int64_t label, std::int64_t classes, std::int64_t sample,
                 const std::filesystem::path& file);

class MemoryDataset final : public Dataset {
 public:
  // pixels: [samples, C, H, W]; labels: [samples], already checked.
  MemoryDataset(Shape sample_shape, std::int64_t classes, std::vector<std::uint8_t> pixels,
                std::vector<std::uint8_t> labels);

  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  std::int64_t classes() const override { return classes_; }
  Shape sample_shape() const override { return sample_shape_; }
  void read(std::int64_t index, std::uint8_t* pixels, std::int32_t* label) const override;

 private:
  Shape sample_shape_;
  std::int64_t classes_;
  std::int64_t sample_bytes_;
  std::vector<std::uint8_t> pixels_;
  std::vector<std::uint8_t> labels_;
};

}  // namespace layup
