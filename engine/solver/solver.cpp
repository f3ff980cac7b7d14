// SPDX-License-Identifier: Apache-2.0
#include "engine/solver/solver.h"

#include <atomic>
#include <bit>

#include "engine/solver/update.h"

namespace layup {

#define LAYUP_LIST_ITEM(name) SolverType name##_solver();
#include "engine/solver/solver_list.inc"
#undef LAYUP_LIST_ITEM

const std::vector<SolverType>& builtin_solvers() {
  static const std::vector<SolverType> solvers = {
#define LAYUP_LIST_ITEM(name) name##_solver(),
#include "engine/solver/solver_list.inc"
#undef LAYUP_LIST_ITEM
  };
  return solvers;
}

namespace {

const SolverType* find_solver(const std::string& name) {
  for (const SolverType& solver : builtin_solvers())
    if (solver.name == name) return &solver;
  return nullptr;
}

// Infinities and NaNs are the values whose exponent bits are all set. Integers, so that the loop
// is vectorised and no option for fast arithmetic can remove it.
bool any_not_finite(const float* values, std::int64_t begin, std::int64_t end) {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  std::uint32_t found = 0;
  for (std::int64_t i = begin; i < end; ++i)
    found |= (std::bit_cast<std::uint32_t>(values[i]) & kExponent) == kExponent ? 1U : 0U;
  return found != 0;
}

}  // namespace

bool all_finite(const float* values, std::int64_t count, int threads) {
  std::atomic<bool> good = true;
  parallel_for(update_threads(count, threads), count, [&](std::int64_t begin, std::int64_t end) {
    if (any_not_finite(values, begin, end)) good.store(false, std::memory_order_relaxed);
  });
  return good.load(std::memory_order_relaxed);
}

bool may_update(StepState& state, const float* gradient, std::int64_t count,
                std::int32_t parameter_index, int threads) {
  if (state.failed != 0) return false;
  if (all_finite(gradient, count, threads)) return true;
  state.failed = kFailedGradient + parameter_index;
  return false;
}

SolverConfig read_solver(JsonReader& solver) {
  SolverConfig config;
  const std::string type = solver.require_string("type");
  const double lr = solver.require_number("lr", {.min = 0});
  config.schedule = read_lr_schedule(solver, lr);
  const SolverType* found = find_solver(type);
  if (found != nullptr) {
    config.rule = found->read(solver);
    solver.finish();
    return config;
  }
  // The keys of a rule that nobody knows cannot be judged.
  std::vector<std::string> names;
  for (const SolverType& known : builtin_solvers()) names.push_back(known.name);
  if (!type.empty())
    solver.fail("type", "unknown solver \"" + type + "\"" + suggestion(type, names));
  return config;
}

}  // namespace layup
