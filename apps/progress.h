// SPDX-License-Identifier: Apache-2.0
// What a person sees of a run: a live bar on a terminal, a plain line now and then elsewhere.
#pragma once

#include <chrono>
#include <string>

#include "apps/trainer.h"

namespace layup {

class Progress : public TrainObserver {
 public:
  enum class Style : std::uint8_t { automatic, bar, plain, none };
  explicit Progress(Style style);
  ~Progress() override;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void on_plan(const SessionPlan& plan) override;
  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;
  void on_message(const std::string& message) override;

 private:
  void print_line(const std::string& line);
  void clear_bar();

  bool is_bar_;
  bool is_silent_;
  bool has_colour_;
  bool bar_shown_ = false;
  std::string memory_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace layup
