// SPDX-License-Identifier: Apache-2.0
// Update rules. One solver is one stem in this folder plus one word in the list of
// engine/solver/meson.build.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/graph/layer.h"
#include "engine/solver/lr_schedule.h"

namespace layup {

class Solver {
 public:
  virtual ~Solver() = default;
  // Persistent float32 tensors per parameter, each of its shape, zero before step 0
  // ("momentum"; empty for plain SGD). Names appear in checkpoints.
  virtual std::vector<std::string> state_names() const = 0;
  // The update of one parameter of `count` elements; the rate comes from StepState. Reads:
  // gradient; writes (updated where they lie): parameter, then the state tensors.
  //
  // The kernel first looks at the whole gradient. If a value is not finite it stores
  // kFailedGradient + parameter_index to StepState::failed (unless that is set already). While
  // `failed` is set it changes nothing.
  virtual Kernel make_update(std::int64_t count, std::int32_t parameter_index,
                             int threads) const = 0;
  virtual Json params() const = 0;  // "type" and the rule's own keys, without lr and schedule
};

struct SolverType {
  std::string name;
  std::unique_ptr<Solver> (*read)(JsonReader& solver) = nullptr;  // does not call finish()
};

const std::vector<SolverType>& builtin_solvers();

// The whole "solver" section: {"type", "lr", rule's own keys, "schedule"}.
struct SolverConfig {
  std::unique_ptr<Solver> rule;
  LrSchedule schedule;
};

// Calls finish(). Errors go to the reader; after an unknown "type" the rule is null.
SolverConfig read_solver(JsonReader& solver);

// True if every value is finite. Deterministic, does not allocate.
bool all_finite(const float* values, std::int64_t count, int threads);

}  // namespace layup
