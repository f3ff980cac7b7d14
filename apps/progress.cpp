// SPDX-License-Identifier: Apache-2.0
#include "apps/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "apps/plan_report.h"
#include "apps/text_table.h"

namespace layup {
namespace {

using std::chrono::duration;
using std::chrono::steady_clock;

constexpr double kBarInterval_s = 0.2;
constexpr double kPlainInterval_s = 10;

std::string clock_time(double seconds) {  // 1:02:03 or 2:03
  const auto total = static_cast<std::int64_t>(std::max(0.0, seconds) + 0.5);
  const auto two = [](std::int64_t n) { return (n < 10 ? "0" : "") + std::to_string(n); };
  const std::string tail = two(total % 60);
  if (total < 3600) return std::to_string(total / 60) + ":" + tail;
  return std::to_string(total / 3600) + ":" + two(total / 60 % 60) + ":" + tail;
}

std::size_t terminal_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

std::string status(const StepReport& report) {
  return "epoch " + std::to_string(std::min(report.epoch + 1, report.num_epochs)) + "/" +
         std::to_string(report.num_epochs) + "  step " + std::to_string(report.step) + "/" +
         std::to_string(report.end_step) + "  loss " + format_fixed(report.loss, 4) + "  " +
         format_fixed(report.images_per_s, 0) + " images/s  ETA " + clock_time(report.eta_s);
}

}  // namespace

Progress::Progress(Style style)
    : is_bar_(style == Style::bar || (style == Style::automatic && isatty(STDOUT_FILENO) == 1)),
      is_silent_(style == Style::none),
      has_colour_(is_bar_ && std::getenv("NO_COLOR") == nullptr) {}

Progress::~Progress() { clear_bar(); }

void Progress::clear_bar() {
  if (bar_shown_) std::cout << "\r\x1b[K" << std::flush;
  bar_shown_ = false;
}

void Progress::print_line(const std::string& line) {
  if (is_silent_) return;
  clear_bar();
  std::cout << line << '\n' << std::flush;
}

void Progress::on_plan(const SessionPlan& plan) {
  if (!is_silent_) std::cout << plan_to_text(plan) << std::flush;
  memory_ = "  memory " + format_bytes(plan.planned_peak_bytes);
  if (plan.request.budget_bytes) memory_ += "/" + format_bytes(*plan.request.budget_bytes);
}

void Progress::on_step(const StepReport& report) {
  if (is_silent_) return;
  const steady_clock::time_point now = steady_clock::now();
  const bool is_last = report.step == report.end_step;
  const double interval = is_bar_ ? kBarInterval_s : kPlainInterval_s;
  if (!is_last && duration<double>(now - last_).count() < interval) return;
  last_ = now;
  const std::string text = status(report) + memory_;
  if (!is_bar_) {
    std::cout << text << '\n' << std::flush;
    return;
  }
  const std::size_t width = terminal_width();
  std::string line = text.substr(0, width - 1);
  if (width > text.size() + 14) {
    const std::size_t length = std::min<std::size_t>(width - text.size() - 6, 40);
    const auto done =
        static_cast<std::size_t>(static_cast<double>(length) * static_cast<double>(report.step) /
                                 static_cast<double>(report.end_step));
    const std::string full(done, '#');
    line = "[" + (has_colour_ ? "\x1b[32m" + full + "\x1b[0m" : full) +
           std::string(length - done, '.') + "] " + text;
  }
  std::cout << '\r' << line << "\x1b[K" << std::flush;
  bar_shown_ = true;
}

void Progress::on_evaluation(const EvaluationReport& report) {
  print_line((report.ends_epoch ? "epoch " + std::to_string(report.epoch) + " done"
                                : "step " + std::to_string(report.step)) +
             ": test accuracy " + format_fixed(report.accuracy * 100, 2) + " %, test loss " +
             format_fixed(report.loss, 4));
}

void Progress::on_message(const std::string& message) { print_line(message); }

}  // namespace layup
