// SPDX-License-Identifier: Apache-2.0
#include "engine/solver/solver.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "engine/error.h"

namespace layup {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

SolverConfig read(const std::string& text) {
  const JsonNode node = parse_json(text, "solver.json");
  JsonErrors errors("solver.json");
  JsonReader reader(node, "/solver", errors);
  SolverConfig config = read_solver(reader);
  errors.throw_if_any();
  return config;
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// One parameter with its state, updated as a session would do it.
struct Trainer {
  Trainer(const std::string& text, std::vector<float> start, int threads = 1)
      : config(read(text)), parameter(std::move(start)) {
    const auto count = static_cast<std::int64_t>(parameter.size());
    const auto num_states = config.rule->state_names().size();
    states.assign(num_states, std::vector<float>(parameter.size(), 0.0F));
    kernel = config.rule->make_update(count, 7, threads);
  }
  void step(const std::vector<float>& gradient) {
    const void* reads[] = {gradient.data()};
    std::vector<void*> writes = {parameter.data()};
    for (auto& tensor : states) writes.push_back(tensor.data());
    state.learning_rate = static_cast<float>(config.schedule.at(state.step));
    kernel({.reads = reads, .writes = writes.data(), .state = &state});
    ++state.step;
  }
  SolverConfig config;
  std::vector<float> parameter;
  std::vector<std::vector<float>> states;
  StepState state;
  Kernel kernel;
};

TEST_CASE("sgd follows its formula") {
  SUBCASE("plain") {
    Trainer trainer(R"({"type": "sgd", "lr": 0.5})", {1, -2});
    CHECK(trainer.states.empty());
    trainer.step({2, 4});
    CHECK(trainer.parameter == std::vector<float>{0, -4});
  }
  SUBCASE("weight decay") {
    Trainer trainer(R"({"type": "sgd", "lr": 0.5, "weight_decay": 0.25})", {1, -2});
    trainer.step({2, 4});
    CHECK(trainer.parameter == std::vector<float>{1 - 0.5F * 2.25F, -2 - 0.5F * 3.5F});
  }
  SUBCASE("momentum") {
    Trainer trainer(R"({"type": "sgd", "lr": 0.5, "momentum": 0.5})", {0, 0});
    trainer.step({2, 4});
    CHECK(trainer.states.at(0) == std::vector<float>{2, 4});
    trainer.step({2, 4});
    CHECK(trainer.states.at(0) == std::vector<float>{3, 6});
    CHECK(trainer.parameter == std::vector<float>{-2.5F, -5});
  }
  SUBCASE("nesterov looks one step ahead") {
    Trainer trainer(R"({"type": "sgd", "lr": 0.5, "momentum": 0.5, "nesterov": true})", {0, 0});
    trainer.step({2, 4});
    CHECK(trainer.parameter == std::vector<float>{-1.5F, -3});
  }
}

TEST_CASE("a gradient that is not finite changes nothing and is recorded") {
  for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
    Trainer trainer(R"({"type": "sgd", "lr": 0.5, "momentum": 0.5})", {1, 2, 3});
    trainer.step({1, 1, 1});
    const auto parameter = trainer.parameter;
    const auto states = trainer.states;
    trainer.step({1, 1, bad});
    CHECK(trainer.state.failed == kFailedGradient + 7);
    CHECK(trainer.parameter == parameter);
    CHECK(trainer.states == states);
    trainer.step({1, 1, 1});  // a later good gradient does not undo it
    CHECK(trainer.parameter == parameter);
    CHECK(trainer.states == states);
  }
}

TEST_CASE("the first failure stays recorded") {
  Trainer trainer(R"({"type": "sgd", "lr": 0.5})", {1});
  trainer.state.failed = kFailedLoss;
  trainer.step({kNan});
  CHECK(trainer.state.failed == kFailedLoss);
  trainer.step({1});
  CHECK(trainer.parameter == std::vector<float>{1});
}

TEST_CASE("all_finite finds one bad value wherever it is, and only bad ones") {
  constexpr std::int64_t kCount = 100003;
  std::vector<float> values(kCount, std::numeric_limits<float>::max());
  values[5] = std::numeric_limits<float>::denorm_min();
  values[6] = -std::numeric_limits<float>::max();
  for (const int threads : {1, 2, 5}) {
    CHECK(all_finite(values.data(), kCount, threads));
    for (const std::int64_t at : {std::int64_t{0}, std::int64_t{50001}, kCount - 1}) {
      const float before = values[at];
      for (const float bad : {kNan, kInfinity, -kInfinity}) {
        values[at] = bad;
        CHECK_FALSE(all_finite(values.data(), kCount, threads));
      }
      values[at] = before;
    }
  }
  CHECK(all_finite(nullptr, 0, 2));
}

TEST_CASE("the number of threads does not change a bit") {
  constexpr std::size_t kCount = 70001;
  std::vector<float> start(kCount);
  std::vector<float> gradient(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    start[i] = std::sin(static_cast<float>(i));
    gradient[i] = std::cos(static_cast<float>(3 * i));
  }
  const std::string text =
      R"({"type": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": true, "weight_decay": 0.01})";
  Trainer one(text, start, 1);
  Trainer three(text, start, 3);
  for (int step = 0; step < 3; ++step) {
    one.step(gradient);
    three.step(gradient);
  }
  CHECK(one.parameter == three.parameter);
  CHECK(one.states == three.states);
  CHECK(one.parameter != start);
}

TEST_CASE("params read back give the same rule") {
  const SolverConfig config =
      read(R"({"type": "sgd", "lr": 1, "momentum": 0.9, "nesterov": true, "weight_decay": 1e-4})");
  Json json = config.rule->params();
  CHECK(json["momentum"] == 0.9);
  CHECK(json["nesterov"] == true);
  CHECK(json["weight_decay"] == 1e-4);
  json["lr"] = 1;
  CHECK(read(json.dump()).rule->params() == config.rule->params());
  CHECK(read(R"({"type": "sgd", "lr": 0})").rule->state_names().empty());
}

TEST_CASE("bad solver sections are refused with position and advice") {
  const std::string misspelt = error_of(R"({"type": "sdg", "lr": 1, "beta": 2})");
  CHECK(misspelt.starts_with(
      "solver.json:1:10: unknown solver \"sdg\"; did you mean \"sgd\"?; known: sgd"));
  CHECK(misspelt.ends_with("(at /solver/type)"));
  CHECK(misspelt.find('\n') == std::string::npos);
  CHECK(error_of(R"({"type": "rocket", "lr": 1})").find("known: sgd") != std::string::npos);
  CHECK(error_of(R"({"lr": 1})").find("\"type\" is missing") != std::string::npos);
  CHECK(error_of(R"({"type": "sgd"})").find("\"lr\" is missing") != std::string::npos);
  CHECK(error_of(R"({"type": "sgd", "lr": -0.1})").find(":1:23: -0.1") != std::string::npos);
  CHECK(error_of(R"({"type": "sgd", "lr": 1, "momentum": 1})").find("less than 1") !=
        std::string::npos);
  CHECK(error_of(R"({"type": "sgd", "lr": 1, "weight_decay": -1})").find("/solver/weight_decay") !=
        std::string::npos);
  CHECK(error_of(R"({"type": "sgd", "lr": 1, "nesterov": true})").find("momentum above 0") !=
        std::string::npos);
  CHECK(
      error_of(R"({"type": "sgd", "lr": 1, "momentun": 0.9})").find("did you mean \"momentum\"?") !=
      std::string::npos);
}

}  // namespace
}  // namespace layup
