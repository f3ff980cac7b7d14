// SPDX-License-Identifier: Apache-2.0
// A labelled image data set. One format is one stem in this folder plus one word in the list of
// data/meson.build.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/json_reader.h"
#include "engine/shape.h"

namespace layup {

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;     // samples; at least 1
  virtual std::int64_t classes() const = 0;  // labels are 0 ... classes-1 (checked when opened)
  virtual Shape sample_shape() const = 0;    // [C, H, W], the same for every sample
  // Writes one sample as bytes, planar C-H-W, and its label. Thread-safe, does not allocate.
  // `index` is in [0, size()). Throws DataError naming the sample.
  virtual void read(std::int64_t index, std::uint8_t* pixels, std::int32_t* label) const = 0;
};

// Both splits have the same sample shape and number of classes.
struct DatasetSplits {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> test;  // null if the set has none
};

// What a format needs besides its keys in "data" (normalisation, augmentation and the like belong
// to the loader: data/preprocess.h).
struct DatasetOptions {
  std::filesystem::path base_dir{};  // relative paths are relative to this (the config's folder),
                                     // or to the working directory when not found there
  std::uint64_t seed = 0;            // of the run; `synthetic` draws its samples from it
};

struct DatasetFormat {
  std::string name;
  // Reads the format's keys, opens and checks files, labels included. Errors of the keys go to the
  // reader; then nothing is opened and both splits are null. DataError (path, what was found, what
  // was expected) for bad files. Leaves finish() to the last reader of the object.
  DatasetSplits (*open)(JsonReader& data, const DatasetOptions& options) = nullptr;
};

const std::vector<DatasetFormat>& builtin_dataset_formats();
// Null if there is none.
const DatasetFormat* find_dataset_format(std::string_view name);

// Reads "format" and what that format needs, and opens the set. As DatasetFormat::open: on errors
// of the keys `train` is null. The keys of the loader are left to read_data_options.
DatasetSplits open_dataset(JsonReader& data, const DatasetOptions& options);

}  // namespace layup
