// SPDX-License-Identifier: Apache-2.0
#include "apps/run_log.h"

#include <cerrno>
#include <cmath>
#include <cstring>

#include "engine/error.h"

namespace layup {

RunLog::RunLog(const std::filesystem::path& path, bool append)
    : path_(path), file_(path, append ? std::ios::app : std::ios::trunc) {
  if (!file_)
    throw ConfigError("the log " + path.string() + " cannot be written (" + std::strerror(errno) +
                      ")");
}

void RunLog::write(const Json& event) {
  if (!file_.is_open()) return;
  file_ << event.dump() << '\n' << std::flush;
  if (!file_)
    throw DataError("the log " + path_.string() + " cannot be written (" + std::strerror(errno) +
                    ")");
}

Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

}  // namespace layup
