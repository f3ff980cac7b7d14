// SPDX-License-Identifier: Apache-2.0
// layup: the toolbox. One verb per question about a configuration.
#include <iostream>

#include "apps/auto_batch.h"
#include "apps/options.h"
#include "apps/plan_report.h"
#include "apps/run_plan.h"
#include "apps/step_timing.h"
#include "apps/text_table.h"
#include "engine/error.h"
#include "engine/graph/device_kernels.h"
#include "engine/process.h"

namespace layup {
namespace {

struct PlanVerb {
  CommandLine line;
  bool compare = false;
  std::string format = "text";

  int run() const {
    RunConfig config = read_config(line.config, line.overrides());
    std::optional<MachineProfile> machine;
    if (!line.machine.empty()) machine = read_machine_profile(line.machine);
    CommandLine own = line;
    if (machine && config.train.kernels.precision == Precision::bf16)
      throw ConfigError("--machine plans in float32: add --set train.precision=float32");
    if (machine) own.device = "reference";  // what this build has does not matter to the profile
    const RunOptions options = own.run_options();
    if (config.train.batch == 0) choose_batch(config, options, machine ? &*machine : nullptr);
    const auto plan_with = [&](const std::string& policy) {
      return plan_run(config, options, policy, machine ? &*machine : nullptr);
    };
    if (compare) {
      std::vector<SessionPlan> plans;
      for (const std::string& policy : policy_names()) plans.push_back(plan_with(policy));
      if (format == "json") {
        Json list = Json::array();
        for (const SessionPlan& plan : plans) list.push_back(plan_to_json(plan));
        std::cout << list.dump(2) << '\n';
      } else {
        std::cout << plans_to_table(plans);
      }
      return kExitOk;
    }
    const SessionPlan plan = plan_with(config.memory.policy);
    std::cout << (format == "json" ? plan_to_json(plan).dump(2) + "\n" : plan_to_text(plan));
    require_feasible(plan);
    return kExitOk;
  }
};

int summary(const CommandLine& line, const std::string& format) {
  RunConfig config = read_config(line.config, line.overrides());
  if (config.train.batch == 0) choose_batch(config, line.run_options());
  const Graph graph = build_graph(config.network, config.train.batch);
  std::cout << (format == "json" ? summary_to_json(graph).dump(2) + "\n" : summary_to_text(graph));
  return kExitOk;
}

// Everything that can be known to be wrong without training is found here.
int check(const CommandLine& line) {
  RunConfig config = read_config(line.config, line.overrides());
  if (config.train.batch == 0) choose_batch(config, line.run_options());
  if (!config.memory.spill.empty()) require_spill_folder(config.memory.spill);
  const SessionPlan plan = plan_run(config, line.run_options(), config.memory.policy);
  require_feasible(plan);
  std::cout << line.config << ": good; " << config.network.layers.size() << " layers, "
            << num_parameters(plan.main().graph) << " parameters, " << config.data.train->size()
            << " training samples of " << config.data.train->classes() << " classes, "
            << config.steps_per_epoch() << " steps per epoch, needs "
            << format_bytes(plan.planned_peak_bytes) << '\n';
  return kExitOk;
}

int eval(const CommandLine& line, const std::string& format) {
  if (line.init.empty() == line.resume.empty())
    throw ConfigError("give the weights to evaluate: either --resume FOLDER or --init FILE");
  const std::atomic<int>& stop = install_signal_handlers();
  RunConfig config = read_config(line.config, line.overrides());
  if (config.train.batch == 0) choose_batch(config, line.run_options());
  const EvaluationReport report = evaluate(config, line.run_options());
  if (stop.load() != 0) return 128 + stop.load();
  if (format == "json") {
    std::cout << Json{{"test_accuracy", report.accuracy}, {"test_loss", report.loss}}.dump()
              << '\n';
  } else {
    std::cout << "test accuracy " << format_fixed(report.accuracy * 100, 2) << " %, test loss "
              << format_fixed(report.loss, 4) << '\n';
  }
  return kExitOk;
}

struct TimeVerb {
  CommandLine line;
  std::string format = "text";
  int steps = 10;

  int run() const {
    RunConfig config = read_config(line.config, line.overrides());
    const RunOptions options = line.run_options();
    if (config.train.batch == 0) choose_batch(config, options);
    Messages messages;
    std::optional<Calibration> calibration;
    double calibration_ms = 0;
    if (needs_costs(config.memory)) {
      const double before = ms_since_process_start();
      calibration = complete_calibration(config, options, messages);
      calibration_ms = ms_since_process_start() - before;
    }
    config.data.test.reset();  // nothing is evaluated
    const SessionPlan plan = plan_with_costs(config, options, config.memory.policy, calibration);
    require_feasible(plan);
    const auto device = make_cpu_device(options.device, options.link);
    Session session(*device, plan, config.solver.rule.get());
    session.initialize(config.train.seed);
    stage_first_batch(config, session);
    const double start_ms = ms_since_process_start() - session.fault_in_ms() - calibration_ms;
    const StepTiming timing = time_steps(config, session, steps);
    const double step_ms = timing.median_ms();
    const auto batch = static_cast<double>(plan.request.batch);
    if (format == "json") {
      std::cout << Json{{"network", plan.main().graph.name},
                        {"policy", plan.main().plan.policy},
                        {"device", to_string(options.device)},
                        {"threads", options.threads},
                        {"batch", plan.request.batch},
                        {"step_ms_median", step_ms},
                        {"step_ms", timing.step_ms},
                        {"outside_operations_ms", timing.stall_ms},
                        {"predicted_step_ms", plan.main().timeline.step_ms},
                        {"images_per_s", batch / step_ms * 1e3},
                        {"start_ms", start_ms},
                        {"fault_in_ms", session.fault_in_ms()},
                        {"planned_peak_bytes", plan.planned_peak_bytes},
                        {"measured_peak_bytes", session.measured_peak_bytes()},
                        {"process_base_rss_bytes", session.base_rss_bytes()},
                        {"process_peak_rss_bytes", peak_rss_bytes()},
                        {"allocations_after_start", session.allocations_after_start()},
                        {"operations", timing_to_json(timing)}}
                       .dump(2)
                << '\n';
      return kExitOk;
    }
    std::cout << timing_to_text(timing) << '\n'
              << plan.main().graph.name << ", batch " << plan.request.batch << ", device "
              << to_string(options.device) << ", " << options.threads << " threads, policy "
              << plan.main().plan.policy << ": step " << format_fixed(step_ms, 2)
              << " ms (median of " << steps << "), " << format_fixed(batch / step_ms * 1e3, 1)
              << " images/s; " << format_fixed(timing.stall_ms, 2) << " ms outside operations\n"
              << "start " << format_fixed(start_ms, 0) << " ms, memory faulted in in "
              << format_fixed(session.fault_in_ms(), 0) << " ms; memory "
              << format_bytes(session.measured_peak_bytes()) << ", process "
              << format_bytes(peak_rss_bytes()) << '\n';
    return kExitOk;
  }

 private:
  struct Messages : TrainObserver {
    void on_message(const std::string& message) override { std::cerr << message << '\n'; }
  };
};

int devices() {
  for (const DeviceKind kind : {DeviceKind::reference, DeviceKind::cpu}) {
    std::cout << to_string(kind) << ": ";
    if (has_device(kind)) {
      std::cout << make_cpu_device(kind)->description();
      if (kind == DeviceKind::cpu) std::cout << ", " << require_device_kernels(kind).describe();
      if (has_bf16(kind)) std::cout << ", bf16";
      std::cout << (kind == default_device() ? ", the default\n" : "\n");
    } else {
      std::cout << "not in this build (oneDNN)\n";
    }
  }
  std::cout << "cuda: not in this build\n"
            << "processors this process may use: " << available_processors() << '\n';
  return kExitOk;
}

}  // namespace
}  // namespace layup

int main(int argc, char** argv) {
  CLI::App app{"Layup's toolbox."};
  app.require_subcommand(1);

  layup::PlanVerb plan;
  CLI::App* plan_verb = app.add_subcommand("plan", "what a run would keep where, and its memory");
  plan.line.add_shaping_options(*plan_verb);
  plan_verb->add_flag("--compare", plan.compare, "one row per policy");
  plan_verb->add_option("--machine", plan.line.machine, "profile of another machine (JSON)");
  plan_verb->add_option("--format", plan.format, "text or json")
      ->check(CLI::IsMember({"text", "json"}));

  layup::CommandLine line;
  CLI::App* summary_verb = app.add_subcommand("summary", "the network, layer by layer");
  line.add_shaping_options(*summary_verb);
  std::string summary_format = "text";
  summary_verb->add_option("--format", summary_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}));
  layup::CommandLine check_line;
  CLI::App* check_verb = app.add_subcommand("check", "finds all that is wrong without training");
  check_line.add_shaping_options(*check_verb);
  layup::CommandLine eval_line;
  std::string eval_format = "text";
  CLI::App* eval_verb = app.add_subcommand("eval", "accuracy of weights on the test set");
  eval_line.add_shaping_options(*eval_verb);
  eval_line.add_weights_options(*eval_verb);
  eval_verb->add_option("--format", eval_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}));
  layup::TimeVerb time;
  CLI::App* time_verb = app.add_subcommand("time", "times a training step, operation by operation");
  time.line.add_shaping_options(*time_verb);
  time_verb->add_option("--steps", time.steps, "steps that count (default 10)")
      ->check(CLI::Range(1, 1000000));
  time_verb->add_option("--format", time.format, "text or json")
      ->check(CLI::IsMember({"text", "json"}));
  CLI::App* devices_verb = app.add_subcommand("devices", "what this build can run on");

  return layup::run_program(app, argc, argv, [&]() -> int {
    if (plan_verb->parsed()) return plan.run();
    if (summary_verb->parsed()) return layup::summary(line, summary_format);
    if (check_verb->parsed()) return layup::check(check_line);
    if (eval_verb->parsed()) return layup::eval(eval_line, eval_format);
    if (time_verb->parsed()) return time.run();
    LAYUP_ASSERT(devices_verb->parsed());
    return layup::devices();
  });
}
