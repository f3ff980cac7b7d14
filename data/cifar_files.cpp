// SPDX-License-Identifier: Apache-2.0
#include "data/cifar_files.h"

#include "data/data_file.h"
#include "data/memory_dataset.h"

namespace layup {
namespace {

constexpr std::int64_t kImageBytes = std::int64_t{3} * 32 * 32;

}  // namespace

std::unique_ptr<Dataset> read_cifar(const std::filesystem::path& folder,
                                    const std::vector<std::string>& names,
                                    const CifarLayout& layout) {
  const auto label_bytes = static_cast<std::int64_t>(layout.label_classes.size());
  const std::int64_t record_bytes = label_bytes + kImageBytes;
  std::vector<std::filesystem::path> paths;  // all looked up before the first one is read
  for (const std::string& name : names) paths.push_back(require_data_file(folder, name));
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
  for (const std::filesystem::path& path : paths) {
    DataFile file(path);
    const std::vector<std::uint8_t> bytes = file.read_all();
    const auto num_bytes = static_cast<std::int64_t>(bytes.size());
    const std::int64_t num_records = num_bytes / record_bytes;
    if (num_bytes == 0 || num_bytes % record_bytes != 0)
      file.fail(std::to_string(num_bytes) + " bytes are no whole number of records of " +
                std::to_string(record_bytes) + " bytes (" + std::to_string(num_records) +
                " records and " + std::to_string(num_bytes % record_bytes) +
                " bytes); is the file truncated, or of another version of CIFAR?");
    // One growth per file: the files are of about equal length.
    pixels.reserve(pixels.size() + static_cast<std::size_t>(num_records * kImageBytes) *
                                       (pixels.empty() ? paths.size() : 1));
    for (std::int64_t record = 0; record < num_records; ++record) {
      const std::uint8_t* begin = bytes.data() + record * record_bytes;
      for (std::int64_t i = 0; i < label_bytes; ++i)
        check_label(begin[i], layout.label_classes[static_cast<std::size_t>(i)], record, path);
      labels.push_back(begin[layout.chosen]);
      pixels.insert(pixels.end(), begin + label_bytes, begin + record_bytes);
    }
  }
  return std::make_unique<MemoryDataset>(Shape{3, 32, 32}, layout.label_classes[layout.chosen],
                                         std::move(pixels), std::move(labels));
}

}  // namespace layup
