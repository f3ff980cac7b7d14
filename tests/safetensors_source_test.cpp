// SPDX-License-Identifier: Apache-2.0
// Files larger than what should be in memory at one time.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/process.h"
#include "engine/safetensors.h"
#include "tests/support/temp_folder.h"

namespace layup {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

TEST_CASE("data come from a source, one tensor at a time, and leave memory when they were read") {
  constexpr std::size_t kTensors = 12;
  constexpr std::int64_t kCount = std::int64_t{2} << 20;  // 8 MiB each
  const TempFolder folder;
  const fs::path path = folder / "large.safetensors";
  std::vector<TensorBlob> blobs;
  for (std::size_t i = 0; i < kTensors; ++i)
    blobs.push_back({"t" + std::to_string(i), StoredType::f32, {kCount}, nullptr, kCount * 4});
  std::vector<float> buffer(kCount);
  std::vector<std::size_t> asked;
  write_safetensors(path, {}, blobs, [&](std::size_t i) {
    asked.push_back(i);
    std::fill(buffer.begin(), buffer.end(), static_cast<float>(i));
    return buffer.data();
  });
  REQUIRE(asked.size() == 2 * kTensors);
  for (std::size_t i = 0; i < asked.size(); ++i) CHECK(asked[i] == i % kTensors);

  const std::int64_t before = current_rss_bytes();
  const SafetensorsFile file = SafetensorsFile::open(path);  // reads all of it for the checksum
  std::int64_t most = current_rss_bytes();
  for (std::size_t i = 0; i < kTensors; ++i) {
    const TensorBlob* tensor = file.find("t" + std::to_string(i));
    REQUIRE(tensor != nullptr);
    const auto* values = static_cast<const float*>(tensor->data);
    CHECK(std::all_of(values, values + kCount,
                      [&](float value) { return value == static_cast<float>(i); }));
    most = std::max(most, current_rss_bytes());
    SafetensorsFile::drop(*tensor);
  }
  CHECK(most - before < (std::int64_t{40} << 20));  // of 96 MiB
}

}  // namespace
}  // namespace layup
