// SPDX-License-Identifier: Apache-2.0
// layup-bench: compares memory plans of one network by running them side by side in one process.
// The plans of one tier and budget make a group, with `none` among them: one step of each in turn,
// so that whatever else the machine does meets all of them alike. Prints medians, predicted beside
// measured.
#include <chrono>
#include <iostream>
#include <memory>

#include "apps/options.h"
#include "apps/run_plan.h"
#include "apps/step_timing.h"
#include "apps/text_table.h"
#include "engine/error.h"
#include "engine/median.h"

namespace layup {
namespace {

// Where copies go: "host", "10GB/s" (host memory behind a paced link) or "file:FOLDER".
struct TierSetup {
  std::string name;
  RunConfig config;
  RunOptions options;
  Calibration calibration;
};

struct Contender {
  std::string label;  // "layup 60 %"
  std::unique_ptr<SessionPlan> plan;
  std::unique_ptr<Device> device;
  std::unique_ptr<Session> session;
  std::vector<double> step_ms;
};

struct Messages : TrainObserver {
  void on_message(const std::string& message) override { std::cerr << message << '\n'; }
};

std::unique_ptr<SessionPlan> plan_with(const TierSetup& tier, const std::string& policy,
                                       std::optional<std::int64_t> budget) {
  SessionRequest request = request_for(tier.config, tier.options);
  request.evaluation_batch = request.last_evaluation_batch = request.last_batch = 0;
  request.policy = policy;
  request.budget_bytes = budget;
  request.calibration = &tier.calibration;
  auto plan = std::make_unique<SessionPlan>(
      plan_session(tier.config.network, tier.config.solver.rule.get(), request));
  plan->request.calibration = nullptr;
  return plan;
}

void start(const TierSetup& tier, Contender& contender) {
  contender.device = make_cpu_device(tier.options.device, tier.options.link);
  contender.session =
      std::make_unique<Session>(*contender.device, *contender.plan, tier.config.solver.rule.get());
  contender.session->initialize(tier.config.train.seed);
  stage_first_batch(tier.config, *contender.session);
}

// Round 0 is cold and does not count.
void step(const TierSetup& tier, Contender& contender, int round) {
  StepState state;
  state.step = round;
  state.seed = tier.config.train.seed;
  state.learning_rate = 1e-3F;
  const auto begin = std::chrono::steady_clock::now();
  const StepResult result = contender.session->train_step(state, contender.plan->request.batch);
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  if (result.failed != 0) throw DivergedError("the benchmark's training diverged");
  if (round > 0) contender.step_ms.push_back(ms);
}

struct Bench {
  CommandLine line;
  std::vector<std::string> policies = {"layup"};
  std::vector<double> percents = {60, 40, 0};  // of what `none` needs; 0: the smallest
  std::vector<std::string> tiers = {"host"};
  int rounds = 7;
  TextTable table{{"plan", "tier", "memory", "of none", "host", "file", "step ms", "over none",
                   "predicted ms", "predicted over measured", "same bits"}};

  int run() {
    std::vector<TierSetup> all;  // all of them first: a mistake shows before minutes of work
    for (const std::string& name : tiers) all.push_back(set_up(name));
    for (const TierSetup& tier : all)
      for (const double percent : percents) run_group(tier, percent);
    std::cout << table.to_markdown();
    return kExitOk;
  }

 private:
  TierSetup set_up(const std::string& name) const {
    CommandLine own = line;
    own.link.reset();
    if (name.starts_with("file:"))
      own.sets.push_back("memory.spill=" + name);
    else if (name != "host")
      own.link = name;
    TierSetup tier{name, read_config(own.config, own.overrides()), own.run_options(), {}};
    if (!name.starts_with("file:")) tier.config.memory.spill.clear();
    Messages messages;
    tier.calibration = complete_calibration(tier.config, tier.options, messages);
    if (tier.options.link) limit_copies(tier.calibration, *tier.options.link);
    const std::filesystem::path& spill = tier.config.memory.spill;
    if (!spill.empty()) {
      const FileRates& rates = tier.calibration.file.at(folder_key(spill));
      std::cerr << name << ": " << format_fixed(rates.write_bytes_per_s * 1e-9, 2) << " GB/s out, "
                << format_fixed(rates.read_bytes_per_s * 1e-9, 2) << " GB/s back, as calibrated\n";
    }
    return tier;
  }

  void run_group(const TierSetup& tier, double percent) {
    std::vector<Contender> group;
    const auto add = [&](std::string label, std::unique_ptr<SessionPlan> plan) {
      group.push_back({std::move(label), std::move(plan), {}, {}, {}});
    };
    add("none", plan_with(tier, "none", {}));
    const std::int64_t whole = group[0].plan->planned_peak_bytes;
    std::optional<std::int64_t> budget;
    if (percent > 0) budget = static_cast<std::int64_t>(static_cast<double>(whole) * percent / 100);
    const std::string at = budget ? " " + format_fixed(percent, 0) + " %" : " smallest";
    for (const std::string& policy : policies) {
      auto plan = plan_with(tier, policy, budget);
      if (!plan->feasible) {
        table.add({policy + at, tier.name, "does not fit", "", "", "", "", "", "", "", ""});
        continue;
      }
      // What is smallest differs from policy to policy; steps compare in the same memory.
      const std::int64_t bytes = plan->planned_peak_bytes;
      add(policy + at, std::move(plan));
      if (budget || policy == "layup") continue;
      auto ours = plan_with(tier, "layup", bytes);
      if (ours->feasible) add("layup in " + policy + "'s", std::move(ours));
    }
    for (Contender& contender : group) start(tier, contender);
    for (int round = 0; round <= rounds; ++round)
      for (Contender& contender : group) step(tier, contender, round);
    report(tier, group, whole);
  }

  void report(const TierSetup& tier, const std::vector<Contender>& group, std::int64_t whole) {
    const double none_ms = median(group[0].step_ms);
    const std::string hash = group[0].session->weights_hash();
    for (const Contender& contender : group) {
      const SessionPlan& plan = *contender.plan;
      const double ms = median(contender.step_ms);
      const double percent =
          100.0 * static_cast<double>(plan.planned_peak_bytes) / static_cast<double>(whole);
      const double predicted_ms = plan.main().timeline.step_ms;
      table.add({contender.label, tier.name, format_bytes(plan.planned_peak_bytes),
                 format_fixed(percent, 1) + " %", format_bytes(plan.host_bytes),
                 format_bytes(plan.file_bytes), format_fixed(ms, 1), format_fixed(ms / none_ms, 3),
                 format_fixed(predicted_ms, 1), format_fixed(predicted_ms / ms, 3),
                 contender.session->weights_hash() == hash ? "yes" : "NO"});
      std::cerr << tier.name << ", " << contender.label << ": " << format_fixed(ms, 1) << " ms\n";
    }
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
  app.add_option(
      "--tiers", bench.tiers,
      "where copies go: host, 12GB/s,10us (host memory behind a paced link), file:FOLDER");
  app.add_option("--rounds", bench.rounds, "steps of each that count")->check(CLI::PositiveNumber);
  return layup::run_program(app, argc, argv, [&] { return bench.run(); });
}
