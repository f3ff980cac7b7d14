// SPDX-License-Identifier: Apache-2.0
// Checkpoints: one safetensors file each, with parameters and BN buffers under their names, solver
// state as "solver/<parameter>:<state>", and where the run stands in the metadata.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/config.h"
#include "scheduler/session.h"

namespace layup {

// What must agree between a checkpoint and the run that goes on from it, and where it stands. The
// position in the data is a pure function of these.
struct RunState {
  std::int64_t step = 0;  // steps done
  std::int64_t batch = 0;
  std::int64_t samples = 0;  // of the training set
  std::uint64_t seed = 0;
  std::string solver;  // Solver::params() as text
  std::string device;
  int threads = 1;
  // The sections model, data, solver and train of the configuration. Differences are warned about:
  // the bits are then not those of one run.
  Json config;
};

// "checkpoint-00000123.safetensors". Deletes all but the newest `keep` afterwards. Throws
// DataError; then the earlier checkpoints are untouched.
std::filesystem::path save_checkpoint(const std::filesystem::path& dir, const Session& session,
                                      const RunState& state, std::int64_t keep);

// Checkpoints in `dir`, the newest first.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& dir);

struct LoadedCheckpoint {
  std::filesystem::path path;
  RunState state;
  std::vector<std::string> warnings;  // damaged files passed over, another device or thread count
};

// Reads the newest checkpoint in `dir` that is whole into the session. Throws DataError if there is
// none, or if it is of another network, solver, data or seed (naming what differs).
LoadedCheckpoint load_checkpoint(const std::filesystem::path& dir, Session& session,
                                 const RunState& expected);

// For evaluation: parameters and buffers alone, from a checkpoint folder or a file.
std::filesystem::path load_weights(const std::filesystem::path& path, Session& session);

}  // namespace layup
