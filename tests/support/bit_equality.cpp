// SPDX-License-Identifier: Apache-2.0
#include "tests/support/bit_equality.h"

#include <algorithm>

#include "engine/graph/device_kernels.h"
#include "tests/support/networks.h"

namespace layup::test {
namespace {

constexpr const char* kVggLike =
    R"({"name": "vgg_like", "input": {"shape": [3, 16, 16]}, "layers": [
  {"name": "conv1", "type": "conv2d", "out_channels": 16, "kernel": 3, "padding": 1},
  {"name": "relu1", "type": "relu"},
  {"name": "conv2", "type": "conv2d", "out_channels": 16, "kernel": 3, "padding": 1},
  {"name": "relu2", "type": "relu"},
  {"name": "pool1", "type": "max_pool2d", "kernel": 2},
  {"name": "conv3", "type": "conv2d", "out_channels": 64, "kernel": 3, "padding": 1},
  {"name": "relu3", "type": "relu"},
  {"name": "conv4", "type": "conv2d", "out_channels": 64, "kernel": 3, "padding": 1},
  {"name": "relu4", "type": "relu"},
  {"name": "pool2", "type": "max_pool2d", "kernel": 2},
  {"name": "fc1", "type": "linear", "out_features": 64},
  {"name": "relu5", "type": "relu"},
  {"name": "drop1", "type": "dropout", "p": 0.5},
  {"name": "fc2", "type": "linear", "out_features": 10},
  {"name": "loss", "type": "softmax_cross_entropy"}]})";

// A skip over nearly the whole network, another within it, and a tensor with four readers.
constexpr const char* kLongSkips = R"({"name": "skips", "input": {"shape": [3, 16, 16]}, "layers": [
  {"name": "conv1", "type": "conv2d", "out_channels": 16, "kernel": 3, "padding": 1},
  {"name": "drop1", "type": "dropout", "p": 0.2},
  {"name": "bn1", "type": "batch_norm"},
  {"name": "relu1", "type": "relu"},
  {"name": "conv2", "type": "conv2d", "out_channels": 16, "kernel": 3, "padding": 1},
  {"name": "relu2", "type": "relu"},
  {"name": "sum1", "type": "add", "inputs": ["relu2", "relu1"]},
  {"name": "conv3", "type": "conv2d", "out_channels": 16, "kernel": 3, "padding": 1},
  {"name": "bn3", "type": "batch_norm"},
  {"name": "drop3", "type": "dropout", "p": 0.2},
  {"name": "sum2", "type": "add", "inputs": ["drop3", "relu1", "sum1"]},
  {"name": "conv4", "type": "conv2d", "out_channels": 16, "kernel": 3, "padding": 1},
  {"name": "relu4", "type": "relu"},
  {"name": "sum3", "type": "add", "inputs": ["relu4", "drop1", "relu1"]},
  {"name": "pool", "type": "avg_pool2d", "kernel": 2},
  {"name": "drop5", "type": "dropout", "p": 0.4},
  {"name": "fc", "type": "linear", "out_features": 10},
  {"name": "loss", "type": "softmax_cross_entropy"}]})";

std::vector<TrainingCase> on_all_devices(const std::vector<TrainingCase>& cases) {
  std::vector<TrainingCase> all = cases;
  if (!has_device(DeviceKind::cpu)) return all;
  for (TrainingCase training : cases) {
    training.device = DeviceKind::cpu;
    all.push_back(std::move(training));
  }
  return all;
}

}  // namespace

std::string label(const TrainingCase& training) {
  return training.name + " on " + to_string(training.device);
}

std::vector<TrainingCase> short_cases(const std::vector<std::string>& names) {
  std::vector<TrainingCase> cases = {
      {"lenet", build_network(R"({"builder": "lenet"})", {1, 28, 28}, 10), 10, 6},
      {"resnet20",
       build_network(R"({"builder": "resnet", "style": "cifar", "depth": 20})", {3, 16, 16}, 10),
       10, 4},
      {"vgg_like", parse_network(kVggLike), 10, 8},
      {"bottlenecks",
       build_network(R"({"builder": "resnet", "blocks": [1, 2, 1, 1], "width": 16})", {3, 32, 32},
                     10),
       10, 5},
      {"skips", parse_network(kLongSkips), 10, 8},
  };
  std::erase_if(cases, [&](const TrainingCase& training) {
    return !names.empty() && std::ranges::find(names, training.name) == names.end();
  });
  return on_all_devices(cases);
}

std::vector<TrainingCase> long_cases() {
  return on_all_devices({
      {"lenet", build_network(R"({"builder": "lenet"})", {1, 28, 28}, 10), 10, 64},
      {"resnet20",
       build_network(R"({"builder": "resnet", "style": "cifar", "depth": 20})", {3, 32, 32}, 10),
       10, 16},
      {"vgg16", build_network(R"({"builder": "vgg", "depth": 16})", {3, 32, 32}, 10), 10, 4},
      {"resnet50", build_network(R"({"builder": "resnet", "depth": 50})", {3, 64, 64}, 10), 10, 4},
      {"skips", parse_network(kLongSkips), 10, 64},
  });
}

Outcome outcome_of(TrainingRun& run, float loss) {
  Outcome outcome;
  outcome.hash = run.session().weights_hash();
  outcome.loss = loss;
  outcome.planned_bytes = run.plan().planned_peak_bytes;
  outcome.measured_bytes = run.session().measured_peak_bytes();
  outcome.host_bytes = run.plan().host_bytes;
  outcome.measured_host_bytes = run.session().measured_host_bytes();
  outcome.allocations_after_start = run.session().allocations_after_start();
  for (const Action& action : run.plan().main().plan.actions)
    outcome.num_replays += action.kind == ActionKind::replay ? 1 : 0;
  return outcome;
}

Outcome run_steps(const TrainingCase& training, const SessionRequest& request,
                  std::optional<LinkPace> pace) {
  TrainingRun run(training, request, make_cpu_device(request.device, pace));
  float loss = 0;
  for (std::int64_t step = 0; step < kStepsOfARun; ++step) {
    const bool is_last = step == 4 && request.last_batch > 0;
    loss = run.step(step, is_last ? request.last_batch : request.batch).loss;
    if (step == 4 && request.evaluation_batch > 0)
      run.session().run(ProgramId::evaluate, run.state(step));
  }
  return outcome_of(run, loss);
}

std::int64_t planned_bytes(const TrainingCase& training, const SessionRequest& request) {
  const auto solver = momentum_solver();
  return plan_session(training.def, solver.get(), request).planned_peak_bytes;
}

std::int64_t minimum_bytes(const TrainingCase& training, const SessionRequest& request) {
  const auto solver = momentum_solver();
  return plan_session(training.def, solver.get(), request).minimum_budget_bytes.value();
}

std::vector<std::int64_t> budget_ladder(const TrainingCase& training, const SessionRequest& request,
                                        int count) {
  SessionRequest keep_all = request;
  keep_all.policy = "none";
  const std::int64_t most = planned_bytes(training, keep_all);
  SessionRequest unbounded = request;
  unbounded.budget_bytes.reset();
  const std::int64_t least = minimum_bytes(training, unbounded);
  if (least >= most) return {least};
  std::vector<std::int64_t> budgets;
  for (int i = 0; i < count; ++i) budgets.push_back(most - (most - least) * i / (count - 1));
  return budgets;
}

}  // namespace layup::test
