// SPDX-License-Identifier: Apache-2.0
// The binary version of CIFAR-10 and CIFAR-100: records of one or two label bytes and 3072 bytes
// of an image, red, green and blue planes of 32 x 32 each.
//
// Source: Krizhevsky, "Learning multiple layers of features from tiny images", 2009; the layout is
// on the page of the data set.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace layup {

struct CifarLayout {
  std::vector<std::int64_t> label_classes;  // classes of each label byte of a record
  std::size_t chosen = 0;                   // the label byte to learn
};

// All records of the files, in order. DataError if a file is missing, is no whole number of
// records, or holds a label (chosen or not) that is out of range.
std::unique_ptr<Dataset> read_cifar(const std::filesystem::path& folder,
                                    const std::vector<std::string>& names,
                                    const CifarLayout& layout);

}  // namespace layup
