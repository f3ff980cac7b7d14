// SPDX-License-Identifier: Apache-2.0
#include "apps/step_tracer.h"

#include "engine/atomic_file.h"
#include "engine/error.h"

namespace layup {
namespace {

constexpr int kTracedStep = 3;  // the first ones are cold

}  // namespace

StepTracer::StepTracer(std::filesystem::path path) : path_(std::move(path)) {
  if (path_.empty()) return;
  if (std::filesystem::is_directory(path_))
    throw ConfigError("the trace " + path_.string() + " cannot be written: it is a folder");
  try {
    const AtomicFile trial(path_, 0);
  } catch (const DataError& error) {
    throw ConfigError("the trace " + path_.string() + " cannot be written: " + error.what());
  }
}

std::span<TimeSpan> StepTracer::begin_step(const SessionPlan& plan, std::int64_t count) {
  if (path_.empty() || ++num_steps_ > kTracedStep) return {};
  programs_.clear();
  std::size_t num_instructions = 0;
  for (const StepPart& part : parts_of_step(plan.request, count)) {
    programs_.push_back(&*plan.at(part.program));
    num_instructions += programs_.back()->program.instructions.size();
  }
  times_.assign(num_instructions, {});
  return times_;
}

bool StepTracer::write() const {
  if (times_.empty()) return false;
  const std::string text = trace_step(programs_, times_).to_json();
  AtomicFile file(path_, static_cast<std::int64_t>(text.size()));
  file.write(text.data(), static_cast<std::int64_t>(text.size()));
  file.commit();
  return true;
}

}  // namespace layup
