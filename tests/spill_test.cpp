// SPDX-License-Identifier: Apache-2.0
// Plans and runs with a file tier: the same bits as without, nothing but the arena in memory, and a
// disk that fails stops the run.
#include <doctest/doctest.h>

#include <cerrno>

#include "engine/device/recording_device.h"
#include "engine/error.h"
#include "memory/policy.h"
#include "memory/validate_plan.h"
#include "scheduler/lower.h"
#include "scheduler/measure_copies.h"
#include "scheduler/validate_program.h"
#include "tests/support/check_outcome.h"
#include "tests/support/disk_folder.h"
#include "tests/support/networks.h"
#include "tests/support/slow_program_checker.h"

namespace layup {
namespace {

using test::check_outcome;
using test::Outcome;
using test::TrainingCase;
using test::TrainingRun;

TrainingCase short_case(const std::string& name) {
  return test::short_cases({name}).at(0);  // on the reference device
}

// As layup-train makes it of "spill" without "host_budget".
SessionRequest spill_request(const TrainingCase& training, const std::string& policy,
                             const std::filesystem::path& folder) {
  SessionRequest request = test::training_request(training, policy);
  request.spill = folder;
  request.host_budget_bytes = 0;
  return request;
}

SessionPlan plan_of(const TrainingCase& training, const SessionRequest& request) {
  return plan_session(training.def, test::momentum_solver().get(), request);
}

TEST_CASE("spill: every policy gives the bits of a run without, all in the file or half") {
  const test::DiskFolder disk;
  if (!disk.exists()) return;
  for (const TrainingCase& training : test::short_cases({"resnet20", "vgg_like", "skips"})) {
    const Outcome expected = test::run_steps(training, test::training_request(training, "none"));
    std::int64_t most_in_file = 0;
    int num_in_both = 0;
    for (const std::string& policy : policy_names()) {
      SessionRequest request = spill_request(training, policy, disk.path());
      std::int64_t budget = test::minimum_bytes(training, request);
      request.budget_bytes = budget;
      INFO(test::label(training) << ", policy " << policy << ", budget " << budget);
      const Outcome outcome = test::run_steps(training, request);
      check_outcome(outcome, expected);
      CHECK(outcome.planned_bytes <= budget);
      CHECK(outcome.host_bytes == 0);
      most_in_file = std::max(most_in_file, outcome.file_bytes);
      if (outcome.file_bytes == 0) continue;
      request.host_budget_bytes = outcome.file_bytes / 2;
      request.budget_bytes = budget = test::minimum_bytes(training, request);
      const Outcome half = test::run_steps(training, request);
      check_outcome(half, expected);
      CHECK(half.host_bytes <= *request.host_budget_bytes);
      num_in_both += half.host_bytes > 0 && half.file_bytes > 0 ? 1 : 0;
    }
    CHECK(most_in_file > 0);
    CHECK(num_in_both >= 2);
  }
}

TEST_CASE("spill: nor do micro-batches, a partial batch, evaluation, or a slow link change bits") {
  const test::DiskFolder disk;
  if (!disk.exists()) return;
  TrainingCase training = short_case("vgg_like");
  training.batch *= 3;
  SessionRequest plain = test::training_request(training, "none");
  plain.last_batch = training.batch - 2;
  plain.evaluation_batch = training.batch;
  plain.micro_batch = 9;
  plain.clip_norm = 0.5;
  const Outcome expected = test::run_steps(training, plain);
  for (const std::string policy : {"layup", "vdnn_all"}) {
    INFO("policy " << policy);
    SessionRequest request = plain;
    request.policy = policy;
    request.spill = disk.path();
    request.host_budget_bytes = 0;
    request.budget_bytes = test::minimum_bytes(training, request);
    const Outcome outcome =
        test::run_steps(training, request, LinkPace{.bytes_per_s = 200e6, .latency_us = 50});
    check_outcome(outcome, expected);
    CHECK(outcome.file_bytes > 0);
  }
}

TEST_CASE("spill: the validators and a slow checker agree on programs with a file") {
  const TrainingCase training = short_case("skips");
  for (const std::int64_t host_budget : {std::int64_t{0}, std::int64_t{200'000}}) {
    SessionRequest request = spill_request(training, "vdnn_all", "unused");
    request.host_budget_bytes = host_budget;
    const SessionPlan plan = plan_of(training, request);
    const ProgramPlan& program = plan.main();
    CHECK(plan.file_bytes == program.plan.file_bytes);
    CHECK(program.program.file_bytes > 0);
    CHECK((program.program.host_bytes > 0) == (host_budget > 0));
    CHECK(test::find_fault(program.program, program.physical).empty());
    CHECK(to_string(program.program, program.physical).find("copy out (file)") !=
          std::string::npos);
    CHECK(to_string(program.plan, program.physical).find(" to the file") != std::string::npos);
  }
}

TEST_CASE("spill: broken plans and programs are refused") {
  const TrainingCase training = short_case("skips");
  SessionRequest request = spill_request(training, "vdnn_all", "unused");
  request.host_budget_bytes = 200'000;
  const SessionPlan session = plan_of(training, request);
  const ProgramPlan& main = session.main();
  const auto first_copy = [](auto& items, auto is_copy) {
    return *std::find_if(items.begin(), items.end(), is_copy);
  };
  const auto to_file = [](const Action& action) {
    return action.kind == ActionKind::offload && action.tier == Tier::file;
  };
  const ValueId spilled = first_copy(main.plan.actions, to_file).value;
  const auto refused = [&](const char* text, const auto& change) {
    MemoryPlan plan = main.plan;
    change(plan);
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(validate_plan(plan, main.physical), doctest::Contains(text), PlanError);
  };
  CHECK_NOTHROW(validate_plan(main.plan, main.physical));
  refused("not aligned",
          [&](MemoryPlan& plan) { plan.host_offsets[index(spilled)] += kAlignment; });
  refused("no place", [&](MemoryPlan& plan) { plan.file_bytes -= kFileAlignment; });
  refused("no place", [&](MemoryPlan& plan) { plan.host_offsets[index(spilled)] = -1; });
  refused("share bytes of a tier", [&](MemoryPlan& plan) {
    for (const Action& action : plan.actions)
      if (to_file(action)) plan.host_offsets[index(action.value)] = 0;
  });
  refused("to that tier", [&](MemoryPlan& plan) {
    for (Action& action : plan.actions)
      if (action.kind == ActionKind::prefetch && action.value == spilled) action.tier = Tier::host;
  });
  refused("not aligned", [&](MemoryPlan& plan) {
    plan.arena_bytes += kAlignment;
    for (Residency& stay : plan.residencies)
      if (stay.value == spilled) stay.offset += kAlignment;
  });

  const auto refused_program = [&](const char* text, const auto& change) {
    Program program = main.program;
    for (Instruction& instruction : program.instructions) {
      if (instruction.kind == Instruction::Kind::kernel || instruction.tier != Tier::file) continue;
      if (!change(instruction)) continue;
      CAPTURE(text);
      CHECK_THROWS_WITH_AS(validate_program(program, main.physical), doctest::Contains(text),
                           PlanError);
      CHECK_FALSE(test::find_fault(program, main.physical).empty());
      return;
    }
    FAIL("nothing to change");
  };
  refused_program("not aligned for the file", [](Instruction& copy) {
    copy.host_offset += kAlignment;
    return true;
  });
  refused_program("outside its memory", [&](Instruction& copy) {
    copy.host_offset = main.program.file_bytes;
    return true;
  });
  refused_program("bytes that hold", [](Instruction& copy) {
    if (copy.kind != Instruction::Kind::copy_in) return false;
    copy.tier = Tier::host;
    copy.host_offset = 0;  // within the host block, wherever it was in the file
    return true;
  });
}

TEST_CASE("spill: the host takes what is made last, up to its budget") {
  const TrainingCase training = short_case("vgg_like");
  SessionRequest request = spill_request(training, "vdnn_all", "unused");
  const std::int64_t all = plan_of(training, request).file_bytes;
  CHECK(all % kFileAlignment == 0);
  std::int64_t before = -1;
  for (int i = 0; i <= 4; ++i) {
    request.host_budget_bytes = all * i / 4;
    const SessionPlan plan = plan_of(training, request);
    CHECK(plan.feasible);
    CHECK(plan.host_bytes <= *request.host_budget_bytes);
    CHECK(plan.host_bytes + plan.file_bytes == all);
    CHECK(plan.host_bytes >= before);
    before = plan.host_bytes;
  }
  CHECK(before == all);
  // Without a file the same budget is too small.
  request.host_budget_bytes = all / 2;
  request.spill.clear();
  CHECK_FALSE(plan_of(training, request).feasible);
  CHECK_THROWS_WITH_AS(require_feasible(plan_of(training, request)),
                       doctest::Contains("\"spill\": \"file:FOLDER\""), PlanError);
}

TEST_CASE("spill: costs of the file count, and it never makes a plan worse") {
  CostModel cost;
  cost.offload_bytes_per_s = 2e9;
  cost.prefetch_bytes_per_s = 4e9;
  cost.latency_ms = 0.01;
  cost.file = {.write_bytes_per_s = 1e9, .read_bytes_per_s = 8e9, .latency_us = 100};
  CHECK(cost.offload_ms(1'000'000) == doctest::Approx(0.51));
  CHECK(cost.offload_ms(1'000'000, Tier::file) == doctest::Approx(1.1));
  // Slower to the host than to the file: the link counts.
  CHECK(cost.prefetch_ms(1'000'000'000, Tier::file) == doctest::Approx(250.01));
  CHECK(cost.with_file_as_host().offload_ms(1'000'000) == doctest::Approx(1.1));

  const TrainingCase training = short_case("resnet20");
  const SessionRequest request = spill_request(training, "layup", "unused");
  ProgramPlan program =
      prepare_program(training.def, test::momentum_solver().get(), request, main_part(request));
  PlanOptions options;
  options.policy = "layup";
  options.host_budget_bytes = 0;
  options.budget_bytes = *minimum_budget_bytes(program.physical, program.cost, options) * 11 / 10;
  const PlanResult without = plan_memory(program.physical, program.cost, options);
  CHECK(without.feasible);
  options.has_file = true;
  std::int64_t in_file = std::numeric_limits<std::int64_t>::max();
  for (const double bytes_per_s : {1e12, 1e8, 1e5}) {
    program.cost.file = {bytes_per_s, bytes_per_s, 1};
    program.cost.file.interference = 0.2;
    const PlanResult with = plan_memory(program.physical, program.cost, options);
    INFO("file of " << bytes_per_s << " bytes per s");
    CHECK(with.feasible);
    CHECK(with.timeline.step_ms <= without.timeline.step_ms * 1.00001);
    CHECK(with.plan.file_bytes <= in_file);
    in_file = with.plan.file_bytes;
    if (bytes_per_s == 1e12) CHECK(in_file > 0);
  }
  CHECK(in_file == 0);  // too slow for anything
}

TEST_CASE("spill: the rates of a folder are measured and kept") {
  const test::DiskFolder disk;
  if (!disk.exists()) return;
  const auto device = make_cpu_device(DeviceKind::reference);
  const FileRates rates = measure_file(*device, 1, disk.path());
  CHECK(rates.write_bytes_per_s > 1e6);
  CHECK(rates.read_bytes_per_s > 1e6);
  CHECK(rates.latency_us > 0);
  CHECK(device->counters().live_bytes == 0);
  CHECK(std::filesystem::is_empty(disk.path()));
  setenv("LAYUP_CACHE_DIR", disk.path().c_str(), 1);
  Calibration calibration;
  calibration.machine = machine_name();
  calibration.copy_bytes_per_s = 1e9;
  calibration.file[folder_key(disk.path())] = rates;
  CHECK(write_calibration(calibration));
  CHECK(read_calibration(DeviceKind::reference, 1) == calibration);
  unsetenv("LAYUP_CACHE_DIR");
  CHECK(folder_key(disk.path() / "x" / "..") == folder_key(disk.path()));
}

// A file in memory whose `bad`-th request fails.
class MemoryQueue : public IoQueue {
 public:
  MemoryQueue(std::vector<char>& file, IoDirection direction, int bad)
      : file_(file), direction_(direction), bad_(bad) {}
  void start(int number, const IoRequest& request) override {
    char* at = file_.data() + request.offset;
    auto* memory = static_cast<char*>(request.memory);
    if (direction_ == IoDirection::write)
      std::copy(memory, memory + request.bytes, at);
    else
      std::copy(at, at + request.bytes, memory);
    done_.push_back({number, num_++ == bad_ ? std::int64_t{-EIO} : request.bytes});
  }
  Done wait() override {
    const Done done = done_.back();
    done_.pop_back();
    return done;
  }

 private:
  std::vector<char>& file_;
  IoDirection direction_;
  int bad_;
  int num_ = 0;
  std::vector<Done> done_;
};

TEST_CASE("spill: a disk that fails stops the step, whichever copy it is") {
  const TrainingCase training = short_case("skips");
  const SessionRequest request = spill_request(training, "vdnn_all", "unused");
  const Outcome expected = test::run_steps(training, test::training_request(training, "none"));
  std::vector<char> file;
  const auto device_that_fails = [&](int bad_write, int bad_read) {
    auto device = std::make_unique<RecordingDevice>(true);
    device->open_files_with([&file, bad_write, bad_read](std::int64_t bytes) {
      file.assign(static_cast<std::size_t>(bytes), 0);
      return std::make_unique<FileTier>(
          "a disk of the test", std::make_unique<MemoryQueue>(file, IoDirection::write, bad_write),
          std::make_unique<MemoryQueue>(file, IoDirection::read, bad_read));
    });
    return device;
  };
  constexpr int kNever = -1;
  {
    TrainingRun run(training, request, device_that_fails(kNever, kNever));
    run.train(0, test::kStepsOfARun);
    CHECK(run.session().weights_hash() == expected.hash);
    CHECK(static_cast<std::int64_t>(file.size()) == run.plan().file_bytes);
  }
  for (const int bad : {0, 3, 20}) {
    TrainingRun writes(training, request, device_that_fails(bad, kNever));
    CHECK_THROWS_WITH_AS(writes.train(0, test::kStepsOfARun),
                         doctest::Contains("cannot write to the file tier (a disk of the test)"),
                         DeviceError);
    TrainingRun reads(training, request, device_that_fails(kNever, bad));
    CHECK_THROWS_WITH_AS(reads.train(0, test::kStepsOfARun),
                         doctest::Contains("cannot read from the file tier"), DeviceError);
  }
  // A device without a file tier says so.
  CHECK_THROWS_WITH_AS(TrainingRun(training, request, std::make_unique<RecordingDevice>(true)),
                       doctest::Contains("no file tier"), DeviceError);
}

TEST_CASE("spill: a folder that will not do is refused before anything runs") {
  if (!has_uring()) return;
  const TrainingCase training = short_case("skips");
  CHECK_THROWS_WITH_AS(
      test::run_steps(training, spill_request(training, "vdnn_all", "/nowhere/at/all")),
      doctest::Contains("is not a folder"), ConfigError);
}

}  // namespace
}  // namespace layup
