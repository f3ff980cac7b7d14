// SPDX-License-Identifier: Apache-2.0
// A folder of its own that can hold a file tier. Folders for temporary files often lie in memory.
#pragma once

#include <optional>

#include "engine/device/file_tier.h"
#include "engine/error.h"
#include "tests/support/temp_folder.h"

namespace layup::test {

class DiskFolder {
 public:
  DiskFolder() {
    for (const std::filesystem::path& base :
         {std::filesystem::temp_directory_path(), std::filesystem::path("/var/tmp"),
          std::filesystem::current_path()}) {
      try {
        require_spill_folder(base);
      } catch (const Error&) {
        continue;
      }
      folder_.emplace(base);
      return;
    }
  }

  // False: nothing here can be tested with a real file (or the build has no file tier).
  bool exists() const { return folder_.has_value(); }
  const std::filesystem::path& path() const { return folder_->path(); }

 private:
  std::optional<TempFolder> folder_;
};

}  // namespace layup::test
