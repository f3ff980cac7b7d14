// SPDX-License-Identifier: Apache-2.0
#include "apps/run_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "apps/checkpoint.h"
#include "engine/error.h"

namespace layup {

void prepare_run_folder(const std::filesystem::path& out, bool may_hold_run) {
  namespace fs = std::filesystem;
  const auto fail = [&](const std::string& problem) {
    throw ConfigError("--out " + out.string() + ": " + problem);
  };
  std::error_code error;
  const fs::path absolute = fs::absolute(out).lexically_normal();
  const fs::path folder = absolute.has_filename() ? absolute : absolute.parent_path();
  if (fs::exists(folder, error) && !fs::is_directory(folder, error))
    fail("is a file, not a folder");
  if (!fs::exists(folder.parent_path(), error))
    fail("the folder " + folder.parent_path().string() + " does not exist");
  fs::create_directory(folder, error);
  if (error) fail("cannot be made (" + error.message() + ")");
  if (!may_hold_run &&
      (!list_checkpoints(folder).empty() || fs::exists(folder / "log.jsonl", error)))
    fail("holds a run already; go on with it by --resume " + out.string() +
         ", or choose another folder");
  const fs::path probe = folder / (".probe-" + std::to_string(getpid()));
  std::ofstream file(probe);
  file << "probe" << std::flush;
  const bool good = file.good();
  const int reason = errno;
  file.close();
  fs::remove(probe, error);
  if (!good) fail(std::string("cannot be written (") + std::strerror(reason) + ")");
}

}  // namespace layup
