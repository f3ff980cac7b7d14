// SPDX-License-Identifier: Apache-2.0
// Solvers and schedules against PyTorch in float64 (tests/golden/solvers.json).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/error.h"
#include "engine/solver/solver.h"
#include "tests/support/golden.h"

namespace layup {
namespace {

constexpr double kTrajectoryTolerance = 1e-5;  // of the largest magnitude
constexpr double kRateTolerance = 1e-6;        // relative

SolverConfig read_built_solver(const JsonNode& node) {
  const std::string type = golden_string(node, "type");
  const auto& solvers = builtin_solvers();
  if (std::none_of(solvers.begin(), solvers.end(),
                   [&](const SolverType& solver) { return solver.name == type; }))
    throw DataError("solver type '" + type + "' is not built");
  JsonErrors errors("solvers.json");
  JsonReader reader(node, "/solver", errors);
  SolverConfig config = read_solver(reader);
  errors.throw_if_any();
  return config;
}

// Runs a case step by step; returns what is wrong, or nothing.
std::string run_case(const JsonNode& golden) {
  const SolverConfig config = read_built_solver(golden_member(golden, "solver"));
  const JsonNode::Array& gradients = *golden_member(golden, "grads").array();
  const JsonNode::Array& trajectory = *golden_member(golden, "trajectory").array();
  const auto rates = golden_numbers(golden_member(golden, "learning_rates"));
  if (gradients.empty() || trajectory.size() != gradients.size() ||
      rates.size() != gradients.size())
    return "the lists have different lengths, or none";

  std::vector<float> parameter = expand_golden(golden_member(golden, "param")).values;
  std::vector<std::vector<float>> states(config.rule->state_names().size(),
                                         std::vector<float>(parameter.size(), 0.0F));
  std::vector<void*> writes = {parameter.data()};
  for (auto& tensor : states) writes.push_back(tensor.data());
  const Kernel kernel = config.rule->make_update(static_cast<std::int64_t>(parameter.size()), 0, 1);
  const auto num_steps = static_cast<std::int64_t>(gradients.size());
  const LrSchedule schedule = config.schedule.resolve(num_steps, num_steps);
  StepState state;
  for (; state.step < num_steps; ++state.step) {
    const std::string where = "step " + std::to_string(state.step);
    const double rate = schedule.at(state.step);
    const double expected = rates[state.step];
    if (!(std::abs(rate - expected) <= kRateTolerance * std::abs(expected)))
      return where + ": the learning rate is wrong";
    state.learning_rate = static_cast<float>(rate);
    const std::vector<float> gradient = expand_golden(gradients[state.step]).values;
    const void* reads[] = {gradient.data()};
    kernel({.reads = reads, .writes = writes.data(), .workspace = nullptr, .state = &state});
    std::string wrong =
        compare_golden(where + ": parameter", parameter, golden_numbers(trajectory[state.step]),
                       kTrajectoryTolerance);
    if (!wrong.empty()) return wrong;
  }
  return state.failed == 0 ? "" : "the update failed";
}

TEST_CASE("golden solvers") {
  for (const JsonNode& golden : read_golden_cases(golden_dir(), "solvers.json")) {
    const std::string name = golden_string(golden, "name");
    std::string wrong;
    try {
      wrong = run_case(golden);
    } catch (const Error& error) {
      wrong = error.what();
    }
    CHECK_MESSAGE(wrong.empty(), name << ": " << wrong);
  }
}

TEST_CASE("golden solvers: a case of a type that is not built says so; a wrong value is noticed") {
  const auto message = [](const std::string& text) -> std::string {
    try {
      return run_case(parse_json(text, "case"));
    } catch (const Error& error) {
      return error.what();
    }
  };
  const auto text = [](const std::string& type, const std::string& rate, const std::string& value) {
    return R"({"solver": {"type": ")" + type + R"(", "lr": 0.5}, "param": {"seed": 1, "shape": [1],
        "scale": 0, "shift": 2}, "grads": [{"seed": 1, "shape": [1], "scale": 0, "shift": 1}],
        "learning_rates": [)" +
           rate + R"(], "trajectory": [[)" + value + "]]}";
  };
  CHECK(message(text("none_such", "0.5", "1.5")) == "solver type 'none_such' is not built");
  CHECK(message(text("sgd", "0.5", "1.5")).empty());
  CHECK(message(text("sgd", "0.50001", "1.5")) == "step 0: the learning rate is wrong");
  CHECK(message(text("sgd", "0.5", "1.5001")).find("step 0: parameter[0]") == 0);
}

}  // namespace
}  // namespace layup
