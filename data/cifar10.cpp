// SPDX-License-Identifier: Apache-2.0
// CIFAR-10, binary version: 50,000 training and 10,000 test images [3, 32, 32] of 10 classes.
// Keys: path, a folder with data_batch_1.bin to data_batch_5.bin and test_batch.bin.
// Errors: see data/cifar_files.h.
#include "data/cifar_files.h"
#include "data/data_file.h"

namespace layup {
namespace {

DatasetSplits open_cifar10(JsonReader& data, const DatasetOptions& options) {
  const std::size_t errors_before = data.errors().lines().size();
  const std::string path = data.require_string("path");
  if (data.errors().lines().size() > errors_before) return {};
  const auto folder = find_data_folder(path, options.base_dir,
                                       "a folder with data_batch_1.bin to data_batch_5.bin and "
                                       "test_batch.bin");
  const CifarLayout layout{{10}, 0};
  DatasetSplits splits;
  splits.train = read_cifar(folder,
                            {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                             "data_batch_4.bin", "data_batch_5.bin"},
                            layout);
  splits.test = read_cifar(folder, {"test_batch.bin"}, layout);
  return splits;
}

}  // namespace

DatasetFormat cifar10_format() { return {"cifar10", open_cifar10}; }

}  // namespace layup
