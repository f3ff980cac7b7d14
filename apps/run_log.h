// SPDX-License-Identifier: Apache-2.0
// The JSONL log of a run: one object per line, {"event": ...} first; numbers that are not finite
// are null. docs/manual.md lists the events.
#pragma once

#include <filesystem>
#include <fstream>

#include "engine/json_node.h"

namespace layup {

class RunLog {
 public:
  RunLog() = default;  // writes nowhere
  // Throws ConfigError if the file cannot be opened. Appends when the run goes on.
  RunLog(const std::filesystem::path& path, bool append);
  // Writes and flushes a line. Throws DataError when the disk is full.
  void write(const Json& event);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

// null if not finite.
Json finite_or_null(double value);

}  // namespace layup
