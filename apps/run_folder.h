// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace layup {

// Makes the output folder and proves that files can be written there, before anything else is done.
// Throws ConfigError: the parent is missing, it is a file, it cannot be written, or it holds a run
// already (unless `may_hold_run`).
void prepare_run_folder(const std::filesystem::path& out, bool may_hold_run);

}  // namespace layup
