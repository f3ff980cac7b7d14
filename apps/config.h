// SPDX-License-Identifier: Apache-2.0
// A training configuration: read, checked, the data set opened and the network built, all errors in
// one go.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/preprocess.h"
#include "engine/graph/graph_def.h"
#include "engine/graph/physical_graph.h"
#include "engine/solver/solver.h"

namespace layup {

struct CheckpointOptions {
  std::int64_t every_epochs = 1;  // 0: not by epochs
  std::int64_t every_steps = 0;   // 0: not by steps
  std::int64_t keep = 3;          // the newest so many; the last good one is never deleted
};

struct TrainOptions {
  std::int64_t batch = 0;        // 0: "auto", to be chosen (auto_batch.h)
  std::int64_t micro_batch = 0;  // a step is made in parts of so many samples; 0: whole
  double clip_norm = 0;          // of all gradients together; 0: no clipping
  std::int64_t epochs = 1;
  std::uint64_t seed = 0;
  CheckpointOptions checkpoint;
  KernelOptions kernels;  // "winograd", "precision"
};

struct MemoryOptions {
  std::string policy = "auto";
  std::optional<std::int64_t> budget_bytes;
  std::optional<std::int64_t> host_budget_bytes;
  std::filesystem::path spill;  // the folder of the file tier; empty: none
  bool updates_inside_backward = true;
};

struct RunConfig {
  std::filesystem::path file;
  Json json;  // as used, overrides included
  GraphDef network;
  DatasetSplits data;
  DataOptions data_options;
  SolverConfig solver;
  TrainOptions train;
  MemoryOptions memory;

  // Training steps of one epoch, and of the whole run.
  std::int64_t steps_per_epoch() const;
  std::int64_t total_steps() const { return steps_per_epoch() * train.epochs; }
  // Samples of the last, partial batch of an epoch; 0 if there is none.
  std::int64_t last_batch() const;
  // The schedule with epochs turned into steps.
  LrSchedule schedule() const;
};

// One "path=value" of --set, or an option that stands for one: path "train.batch", value as JSON or
// a bare string.
struct Override {
  std::string path;
  std::string value;
};

// Throws ConfigError (all errors, with positions), GraphError, DataError.
RunConfig read_config(const std::filesystem::path& file, const std::vector<Override>& overrides);

}  // namespace layup
