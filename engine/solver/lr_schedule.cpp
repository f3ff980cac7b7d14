// SPDX-License-Identifier: Apache-2.0
#include "engine/solver/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace layup {
namespace {

// Half of the range, so that sums of two never overflow.
constexpr double kMostSteps = 4611686018427387904.0;  // 2^62

std::int64_t to_steps(double epochs, std::int64_t steps_per_epoch) {
  const double steps = std::round(epochs * static_cast<double>(steps_per_epoch));
  return static_cast<std::int64_t>(std::min(steps, kMostSteps));
}

template <typename T>
void check_ascending(JsonReader& schedule, const char* key, const std::vector<T>& list) {
  const auto falls = std::adjacent_find(list.begin(), list.end(), std::greater_equal<>());
  if (falls != list.end()) schedule.fail(key, "milestones must rise from each to the next");
}

void read_milestones(JsonReader& schedule, LrSchedule& result) {
  result.gamma = schedule.get_number("gamma", result.gamma, {.min = 0, .min_excluded = true});
  result.milestones = schedule.get_int_list("milestones", {.min = 0});
  result.milestone_epochs = schedule.get_number_list("milestone_epochs", {.min = 0});
  if (schedule.has("milestones") == schedule.has("milestone_epochs"))
    schedule.fail("",
                  "multistep needs \"milestones\" (in steps) or \"milestone_epochs\", one of "
                  "the two");
  check_ascending(schedule, "milestones", result.milestones);
  check_ascending(schedule, "milestone_epochs", result.milestone_epochs);
}

void read_cosine(JsonReader& schedule, LrSchedule& result) {
  if (schedule.has("steps")) result.steps = schedule.get_int("steps", 1, {.min = 1});
  result.min_lr = schedule.get_number("min_lr", 0, {.min = 0});
  if (result.min_lr > result.lr) schedule.fail("min_lr", "\"min_lr\" must not be above \"lr\"");
  if (result.steps > 0 && result.warmup_steps > result.steps)
    schedule.fail("warmup_steps", "the warm-up is longer than the " + std::to_string(result.steps) +
                                      " steps of the cosine");
}

}  // namespace

LrSchedule read_lr_schedule(JsonReader& solver, double lr) {
  LrSchedule result;
  result.lr = lr;
  auto schedule = solver.get_object("schedule");
  if (!schedule) return result;
  static const std::vector<std::string> kTypes = {"constant", "multistep", "cosine"};
  const std::size_t errors_before = schedule->errors().lines().size();
  const std::string type = schedule->require_choice("type", kTypes);
  // Without a known type the other keys cannot be judged.
  if (schedule->errors().lines().size() > errors_before) return result;
  result.warmup_steps = schedule->get_int("warmup_steps", 0, {.min = 0});
  result.warmup_epochs = schedule->get_number("warmup_epochs", 0, {.min = 0});
  if (schedule->has("warmup_steps") && schedule->has("warmup_epochs"))
    schedule->fail("warmup_epochs", "give \"warmup_steps\" or \"warmup_epochs\", not both");
  if (type == "multistep") {
    result.kind = LrSchedule::Kind::multistep;
    read_milestones(*schedule, result);
  } else if (type == "cosine") {
    result.kind = LrSchedule::Kind::cosine;
    read_cosine(*schedule, result);
  }
  schedule->finish();
  return result;
}

LrSchedule LrSchedule::resolve(std::int64_t steps_per_epoch, std::int64_t total_steps) const {
  LrSchedule resolved = *this;
  for (const double epochs : milestone_epochs)
    resolved.milestones.push_back(to_steps(epochs, steps_per_epoch));
  resolved.milestone_epochs.clear();
  if (warmup_epochs > 0) resolved.warmup_steps = to_steps(warmup_epochs, steps_per_epoch);
  resolved.warmup_epochs = 0;
  if (kind == Kind::cosine && steps == 0) resolved.steps = total_steps;
  return resolved;
}

double LrSchedule::at(std::int64_t step) const {
  if (step < warmup_steps)
    return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (kind == Kind::constant) return lr;
  if (kind == Kind::multistep) {
    const auto passed = std::upper_bound(milestones.begin(), milestones.end(), step);
    return lr * std::pow(gamma, static_cast<double>(passed - milestones.begin()));
  }
  if (step >= steps) return min_lr;
  const auto t = static_cast<double>(step - warmup_steps);
  const auto length = static_cast<double>(steps - warmup_steps);
  return min_lr + (lr - min_lr) * (1 + std::cos(std::numbers::pi * t / length)) / 2;
}

}  // namespace layup
