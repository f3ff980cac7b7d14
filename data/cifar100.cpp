// SPDX-License-Identifier: Apache-2.0
// CIFAR-100, binary version: 50,000 training and 10,000 test images [3, 32, 32]; the first label
// byte is the coarse one (20 classes), the second the fine one (100 classes).
// Keys: path, a folder with train.bin and test.bin; label, "fine" (default) or "coarse".
// Errors: see data/cifar_files.h.
#include "data/cifar_files.h"
#include "data/data_file.h"

namespace layup {
namespace {

DatasetSplits open_cifar100(JsonReader& data, const DatasetOptions& options) {
  const std::size_t errors_before = data.errors().lines().size();
  const std::string path = data.require_string("path");
  const std::string label = data.get_choice("label", "fine", {"fine", "coarse"});
  if (data.errors().lines().size() > errors_before) return {};
  const auto folder =
      find_data_folder(path, options.base_dir, "a folder with train.bin and test.bin");
  const CifarLayout layout{{20, 100}, label == "coarse" ? std::size_t{0} : std::size_t{1}};
  DatasetSplits splits;
  splits.train = read_cifar(folder, {"train.bin"}, layout);
  splits.test = read_cifar(folder, {"test.bin"}, layout);
  return splits;
}

}  // namespace

DatasetFormat cifar100_format() { return {"cifar100", open_cifar100}; }

}  // namespace layup
