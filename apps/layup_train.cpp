// SPDX-License-Identifier: Apache-2.0
// layup-train: trains a network from a JSON configuration.
#include <iostream>

#include "apps/auto_batch.h"
#include "apps/options.h"
#include "apps/plan_report.h"
#include "apps/progress.h"
#include "apps/run_folder.h"
#include "apps/text_table.h"
#include "engine/error.h"

namespace layup {
namespace {

int run(const CommandLine& line, const std::string& progress_style, bool plan_only) {
  const std::atomic<int>& stop = install_signal_handlers();
  const RunOptions options = line.run_options();
  const bool resumes = !options.resume.empty();
  if (!options.out.empty() && !plan_only)
    prepare_run_folder(options.out, resumes && std::filesystem::exists(options.out) &&
                                        std::filesystem::exists(options.resume) &&
                                        std::filesystem::equivalent(options.out, options.resume));
  RunConfig config = read_config(line.config, line.overrides());
  if (config.train.batch == 0) {
    const AutoBatch chosen = choose_batch(config, options);
    std::cout << "batch " << chosen.batch << ": its plan needs " << format_bytes(chosen.bytes)
              << (chosen.next_bytes > 0
                      ? ", one sample more would need " + format_bytes(chosen.next_bytes)
                      : ", the whole training set")
              << " (budget " << format_bytes(*config.memory.budget_bytes) << ")\n";
  }
  if (plan_only) {
    const SessionPlan plan = plan_run(config, options, config.memory.policy);
    std::cout << plan_to_text(plan);
    require_feasible(plan);
    return kExitOk;
  }
  if (stop.load() != 0) return 128 + stop.load();
  Progress progress(progress_style == "none"    ? Progress::Style::none
                    : progress_style == "plain" ? Progress::Style::plain
                    : progress_style == "bar"   ? Progress::Style::bar
                                                : Progress::Style::automatic);
  const TrainResult result = train(config, options, progress);
  const Json& summary = result.summary;
  if (progress_style != "none") {
    const auto show = [&](const char* key) { return summary[key].dump(); };
    const auto number = [&](const char* key, double factor, int digits, const char* unit) {
      const Json& value = summary[key];
      return value.is_number() ? format_fixed(value.get<double>() * factor, digits) + unit
                               : std::string("unknown");
    };
    std::string text = "done: " + show("steps") + " steps, loss " + number("loss", 1, 4, "") +
                       ", test accuracy " + number("test_accuracy", 100, 2, " %") + ", " +
                       number("images_per_s", 1, 0, " images/s") + "\n";
    text += "memory: planned " + show("planned_peak_bytes") + " bytes, measured " +
            show("measured_peak_bytes") + ", allocations after start " +
            show("allocations_after_start") + "\n";
    text += "weights " + summary["weights_hash"].get<std::string>() + "\n";
    std::cout << text;
  }
  return result.signal == 0 ? kExitOk : 128 + result.signal;
}

}  // namespace
}  // namespace layup

int main(int argc, char** argv) {
  CLI::App app{"Trains very deep CNNs in little memory."};
  layup::CommandLine line;
  line.add_shaping_options(app);
  line.add_weights_options(app);
  app.add_option("--epochs", line.epochs, "passes over the training set");
  app.add_option("--steps", line.steps, "stop after so many steps, counted from step 0")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--out", line.out, "folder for checkpoints and log; must not hold a run");
  app.add_option("--log", line.log, "JSONL log (default: log.jsonl in --out)");
  app.add_option("--trace", line.trace,
                 "timeline of one step, measured and predicted, as Chrome trace JSON");
  std::string progress = "auto";
  app.add_option("--progress", progress, "auto, bar, plain or none")
      ->check(CLI::IsMember({"auto", "bar", "plain", "none"}));
  bool plan_only = false;
  app.add_flag("--plan-only", plan_only, "print the plan and stop");
  return layup::run_program(app, argc, argv, [&] { return layup::run(line, progress, plan_only); });
}
