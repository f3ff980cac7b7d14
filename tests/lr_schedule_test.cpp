// SPDX-License-Identifier: Apache-2.0
#include "engine/solver/lr_schedule.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

#include "engine/error.h"

namespace layup {
namespace {

// The schedule of {"schedule": text} for a rate of 0.8.
LrSchedule read(const std::string& text) {
  const JsonNode node = parse_json("{\"schedule\": " + text + "}", "s.json");
  JsonErrors errors("s.json");
  JsonReader reader(node, "/solver", errors);
  LrSchedule schedule = read_lr_schedule(reader, 0.8);
  errors.throw_if_any();
  return schedule;
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

bool near(double a, double b) { return std::abs(a - b) <= 1e-12; }

TEST_CASE("constant, also when no schedule is given") {
  const JsonNode node = parse_json("{}", "s.json");
  JsonErrors errors("s.json");
  JsonReader reader(node, "", errors);
  const LrSchedule absent = read_lr_schedule(reader, 0.8).resolve(10, 100);
  const LrSchedule constant = read(R"({"type": "constant"})").resolve(10, 100);
  for (const std::int64_t step : {0, 99, 100000}) {
    CHECK(absent.at(step) == 0.8);
    CHECK(constant.at(step) == 0.8);
  }
}

TEST_CASE("multistep falls at each milestone, given in steps or epochs") {
  const LrSchedule steps =
      read(R"({"type": "multistep", "milestones": [3, 5], "gamma": 0.5})").resolve(2, 100);
  const double expected[] = {0.8, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2};
  for (int step = 0; step < 7; ++step) CHECK(near(steps.at(step), expected[step]));
  CHECK(near(steps.at(1'000'000), 0.2));

  const LrSchedule epochs =
      read(R"({"type": "multistep", "milestone_epochs": [1.5, 2], "gamma": 0.5})").resolve(2, 100);
  CHECK(epochs.milestones == std::vector<std::int64_t>{3, 4});
  CHECK(epochs.milestone_epochs.empty());
  CHECK(near(epochs.at(2), 0.8));
  CHECK(near(epochs.at(3), 0.4));
  CHECK(near(epochs.at(4), 0.2));
}

TEST_CASE("cosine runs over the whole run unless it has steps of its own, then stays low") {
  const LrSchedule schedule = read(R"({"type": "cosine", "min_lr": 0.2})");
  const LrSchedule whole = schedule.resolve(10, 40);
  CHECK(whole.steps == 40);
  CHECK(near(whole.at(0), 0.8));
  CHECK(near(whole.at(20), 0.5));
  CHECK(near(whole.at(10), 0.5 + 0.3 * std::cos(std::numbers::pi / 4)));
  CHECK(whole.at(40) == 0.2);
  CHECK(whole.at(4000) == 0.2);
  const LrSchedule own = read(R"({"type": "cosine", "steps": 8})").resolve(10, 40);
  CHECK(own.steps == 8);
  CHECK(near(own.at(4), 0.4));
  CHECK(own.at(8) == 0);
}

TEST_CASE("warm-up rises in a straight line; the cosine runs over what is left") {
  const LrSchedule cosine =
      read(R"({"type": "cosine", "steps": 24, "warmup_epochs": 0.5})").resolve(8, 1000);
  CHECK(cosine.warmup_steps == 4);
  CHECK(cosine.warmup_epochs == 0);
  CHECK(near(cosine.at(0), 0.2));
  CHECK(near(cosine.at(2), 0.6));
  CHECK(near(cosine.at(3), 0.8));
  CHECK(near(cosine.at(4), 0.8));
  CHECK(near(cosine.at(14), 0.4));
  CHECK(cosine.at(24) == 0);

  // Milestones count from step 0.
  const LrSchedule multistep =
      read(R"({"type": "multistep", "milestones": [6], "gamma": 0.5, "warmup_steps": 4})")
          .resolve(8, 1000);
  CHECK(near(multistep.at(1), 0.4));
  CHECK(near(multistep.at(5), 0.8));
  CHECK(near(multistep.at(6), 0.4));

  const LrSchedule constant = read(R"({"type": "constant", "warmup_steps": 2})").resolve(8, 1000);
  CHECK(near(constant.at(0), 0.4));
  CHECK(near(constant.at(1), 0.8));
  CHECK(constant.at(2) == 0.8);
}

TEST_CASE("a run that is shorter than its warm-up never divides by zero") {
  const LrSchedule schedule = read(R"({"type": "cosine", "warmup_epochs": 2})").resolve(10, 15);
  for (std::int64_t step = 0; step < 40; ++step) CHECK(std::isfinite(schedule.at(step)));
  CHECK(near(schedule.at(14), 0.6));
  CHECK(schedule.at(20) == 0);
}

TEST_CASE("the rate is a pure function of the step: a resumed run reads the same rates") {
  for (const char* text :
       {R"({"type": "constant", "warmup_steps": 5})",
        R"({"type": "multistep", "milestone_epochs": [1, 2], "warmup_epochs": 0.3})",
        R"({"type": "cosine", "warmup_steps": 3, "min_lr": 0.01})"}) {
    const LrSchedule straight = read(text).resolve(7, 20);
    std::vector<double> rates;
    for (std::int64_t step = 0; step < 20; ++step) rates.push_back(straight.at(step));
    const LrSchedule resumed = read(text).resolve(7, 20);
    for (std::int64_t step = 19; step >= 8; --step) CHECK(resumed.at(step) == rates[step]);
  }
}

TEST_CASE("epochs too large to count do not overflow") {
  const LrSchedule schedule =
      read(R"({"type": "multistep", "milestone_epochs": [1, 1e300], "warmup_epochs": 1e300})")
          .resolve(1'000'000, 100);
  CHECK(schedule.milestones.at(1) > 1'000'000'000);
  CHECK(std::isfinite(schedule.at(50)));
}

TEST_CASE("bad schedules are refused with position") {
  CHECK(error_of(R"({"type": "cosin"})") ==
        "s.json:1:23: unknown value \"cosin\"; did you mean \"cosine\"?; known: constant, "
        "multistep, cosine (at /solver/schedule/type)");
  CHECK(error_of("{}").find("\"type\" is missing") != std::string::npos);
  CHECK(error_of("3").find("expected an object") != std::string::npos);
  CHECK(error_of(R"({"type": "multistep"})").find("one of the two") != std::string::npos);
  CHECK(error_of(R"({"type": "multistep", "milestones": [1], "milestone_epochs": [1]})")
            .find("one of the two") != std::string::npos);
  CHECK(error_of(R"({"type": "multistep", "milestones": [3, 3]})").find("must rise") !=
        std::string::npos);
  CHECK(error_of(R"({"type": "multistep", "milestone_epochs": [3, 2.5]})").find("must rise") !=
        std::string::npos);
  CHECK(error_of(R"({"type": "multistep", "milestones": [1.5]})").find("/milestones/0") !=
        std::string::npos);
  CHECK(error_of(R"({"type": "cosine", "min_lr": 0.9})").find("above \"lr\"") != std::string::npos);
  CHECK(error_of(R"({"type": "cosine", "steps": 0})").find("out of range") != std::string::npos);
  CHECK(error_of(R"({"type": "cosine", "steps": 3, "warmup_steps": 4})").find("longer than") !=
        std::string::npos);
  CHECK(error_of(R"({"type": "cosine", "warmup_steps": 1, "warmup_epochs": 1})").find("not both") !=
        std::string::npos);
  CHECK(error_of(R"({"type": "cosine", "gamma": 0.1})").find("unknown key \"gamma\"") !=
        std::string::npos);
}

}  // namespace
}  // namespace layup
