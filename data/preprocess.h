// SPDX-License-Identifier: Apache-2.0
// From the bytes of a sample to the float32 values that the network reads:
//
//   x = (pixel / 255 - mean[c]) / std[c]     float32, as torchvision's ToTensor and Normalize do
//
// with augmentation of the bytes before that, in training only:
//   pad_crop  pad by `padding` black pixels (0, before normalisation) on each side, then cut out
//             the old size at an even-chance place
//   flip      mirror left and right with probability 1/2
// The draws are a pure function of (seed, epoch, sample): they depend neither on the loader's
// threads nor on the order of samples.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/json_reader.h"
#include "engine/shape.h"

namespace layup {

struct PreprocessOptions {
  std::vector<float> mean;        // one per channel, or a single one for all; empty: 0
  std::vector<float> std;         // likewise, greater than 0; empty: 1
  std::int64_t crop_padding = 0;  // pad_crop; 0: none
  bool flip = false;

  bool operator==(const PreprocessOptions&) const = default;
};

// What "data" says besides the data set itself.
struct DataOptions {
  PreprocessOptions preprocess;
  int loader_threads = 1;
  bool shuffle = true;     // of the training set
  bool drop_last = false;  // leave out the partial last batch of a training epoch

  bool operator==(const DataOptions&) const = default;
};

// Reads "normalize", "augment", "loader_threads", "shuffle" and "drop_last", then calls finish():
// it is the last reader of "data". `channels` is that of the data set; 0 if unknown since opening
// it failed (then the lengths of mean and std go unchecked). Errors go to the reader.
DataOptions read_data_options(JsonReader& data, std::int64_t channels);

struct AugmentDraw {
  std::int64_t dy = 0;  // the cut begins here in the padded image: 0 ... 2 * padding
  std::int64_t dx = 0;
  bool is_flipped = false;

  bool operator==(const AugmentDraw&) const = default;
};

AugmentDraw draw_augmentation(const PreprocessOptions& options, std::uint64_t seed,
                              std::int64_t epoch, std::int64_t sample);

class Preprocessor {
 public:
  Preprocessor(const PreprocessOptions& options, const Shape& sample_shape, std::uint64_t seed);

  // Both read and write [C, H, W]. Thread-safe, do not allocate.
  void normalize(const std::uint8_t* pixels, float* x) const;
  void augment(const std::uint8_t* pixels, std::int64_t epoch, std::int64_t sample, float* x) const;

 private:
  PreprocessOptions options_;
  std::uint64_t seed_;
  std::int64_t channels_;
  std::int64_t height_;
  std::int64_t width_;
  std::vector<float> table_;  // [C, 256]: the value of each byte
};

}  // namespace layup
