// SPDX-License-Identifier: Apache-2.0
// layup-bench: compares memory plans of one network by running them side by side in one process,
// one step of each in turn, so that whatever else the machine does meets all of them alike. Prints
// medians, predicted beside measured.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>

#include "apps/options.h"
#include "apps/run_plan.h"
#include "apps/step_timing.h"
#include "apps/text_table.h"
#include "engine/error.h"

namespace layup {
namespace {

struct Contender {
  std::string label;  // "layup 60 %"
  std::string link;   // "" or as --emulate-link
  std::unique_ptr<SessionPlan> plan;
  std::unique_ptr<Device> device;
  std::unique_ptr<Session> session;
  std::vector<double> step_ms;

  double median_ms() const {
    std::vector<double> sorted = step_ms;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

struct Bench {
  CommandLine line;
  std::vector<std::string> policies = {"layup"};
  std::vector<double> percents = {60, 40, 0};  // of what `none` needs; 0: the smallest
  std::vector<std::string> links = {""};
  int rounds = 7;

  int run() {
    const RunConfig config = read_config(line.config, line.overrides());
    RunOptions options = line.run_options();
    Messages messages;
    const Calibration calibration = complete_calibration(config, options, messages);
    const auto plan_with = [&](const std::string& policy, std::optional<std::int64_t> budget,
                               const std::string& link) {
      RunOptions own = options;
      if (!link.empty()) own.link = parse_link_pace(link);
      SessionRequest request = request_for(config, own);
      request.evaluation_batch = request.last_evaluation_batch = request.last_batch = 0;
      return plan_request(config, own, request, policy, budget, calibration);
    };
    std::vector<Contender> all;
    all.push_back({"none", "", plan_with("none", {}, ""), {}, {}, {}});
    const std::int64_t whole = all[0].plan->planned_peak_bytes;
    for (const std::string& link : links)
      for (const std::string& policy : policies)
        for (const double percent : percents) {
          std::optional<std::int64_t> budget;
          if (percent > 0)
            budget = static_cast<std::int64_t>(static_cast<double>(whole) * percent / 100);
          auto plan = plan_with(policy, budget, link);
          if (!plan->feasible) continue;
          all.push_back(
              {policy + (percent > 0 ? " " + format_fixed(percent, 0) + " %" : " smallest"),
               link,
               std::move(plan),
               {},
               {},
               {}});
        }
    for (Contender& contender : all) start(config, options, contender);
    for (int round = 0; round <= rounds; ++round)
      for (Contender& contender : all) step(config, contender, round);
    print(all, whole);
    return kExitOk;
  }

 private:
  struct Messages : TrainObserver {
    void on_message(const std::string& message) override { std::cerr << message << '\n'; }
  };

  static std::unique_ptr<SessionPlan> plan_request(
      const RunConfig& config, const RunOptions& options, SessionRequest request,
      const std::string& policy, std::optional<std::int64_t> budget, Calibration calibration) {
    if (options.link) limit_copies(calibration, *options.link);
    request.policy = policy;
    request.budget_bytes = budget;
    request.calibration = &calibration;
    auto plan = std::make_unique<SessionPlan>(
        plan_session(config.network, config.solver.rule.get(), request));
    plan->request.calibration = nullptr;
    return plan;
  }

  static void start(const RunConfig& config, const RunOptions& options, Contender& contender) {
    std::optional<LinkPace> pace;
    if (!contender.link.empty()) pace = parse_link_pace(contender.link);
    contender.device = make_cpu_device(options.device, pace);
    contender.session =
        std::make_unique<Session>(*contender.device, *contender.plan, config.solver.rule.get());
    contender.session->initialize(config.train.seed);
    stage_first_batch(config, *contender.session);
  }

  // Round 0 is cold and does not count.
  static void step(const RunConfig& config, Contender& contender, int round) {
    StepState state;
    state.step = round;
    state.seed = config.train.seed;
    state.learning_rate = 1e-3F;
    const auto begin = std::chrono::steady_clock::now();
    const StepResult result = contender.session->train_step(state, contender.plan->request.batch);
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    if (result.failed != 0) throw DivergedError("the benchmark's training diverged");
    if (round > 0) contender.step_ms.push_back(ms);
  }

  void print(const std::vector<Contender>& all, std::int64_t whole) const {
    const double none_ms = all[0].median_ms();
    const std::string hash = all[0].session->weights_hash();
    TextTable table({"plan", "link", "memory", "of none", "host", "step ms", "over none",
                     "predicted ms", "predicted over measured", "same bits"});
    for (const Contender& contender : all) {
      const ProgramPlan& program = contender.plan->main();
      const double ms = contender.median_ms();
      table.add({contender.label, contender.link.empty() ? "-" : contender.link,
                 format_bytes(contender.plan->planned_peak_bytes),
                 format_fixed(100.0 * static_cast<double>(contender.plan->planned_peak_bytes) /
                                  static_cast<double>(whole),
                              1) +
                     " %",
                 format_bytes(contender.plan->host_bytes), format_fixed(ms, 1),
                 format_fixed(ms / none_ms, 3), format_fixed(program.timeline.step_ms, 1),
                 format_fixed(program.timeline.step_ms / ms, 3),
                 contender.session->weights_hash() == hash ? "yes" : "NO"});
    }
    std::cout << table.to_markdown();
  }
};

}  // namespace
}  // namespace layup

int main(int argc, char** argv) {
  CLI::App app{"Runs memory plans of one network side by side and prints medians."};
  layup::Bench bench;
  bench.line.add_shaping_options(app);
  app.add_option("--policies", bench.policies, "policies to run")->delimiter(',');
  app.add_option("--percents", bench.percents,
                 "budgets, in percent of what none needs; 0: smallest")
      ->delimiter(',');
  app.add_option("--links", bench.links, "links to emulate, as 10GB/s; - for none");
  app.add_option("--rounds", bench.rounds, "steps of each that count")->check(CLI::PositiveNumber);
  return layup::run_program(app, argc, argv, [&] {
    for (std::string& link : bench.links)
      if (link == "-") link.clear();
    return bench.run();
  });
}
