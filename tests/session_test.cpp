// SPDX-License-Identifier: Apache-2.0
// A planned run on a device: bytes as planned, no allocation once it is built, the same bits under
// every policy, and what is refused or explained.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "engine/allocation_counter.h"
#include "engine/device/recording_device.h"
#include "engine/error.h"
#include "engine/process.h"
#include "layers/registry.h"
#include "memory/policy.h"
#include "scheduler/session.h"
#include "tests/support/heap.h"
#include "tests/support/networks.h"
#include "tests/support/random_graph.h"
#include "tests/support/sanitizers.h"
#include "tests/support/session_run.h"

namespace layup {
namespace {

using test::build_network;
using test::parse_network;
using Run = test::SessionRun;

SessionRequest request_of(std::int64_t batch, const std::string& policy = "none") {
  SessionRequest request;
  request.batch = batch;
  request.last_batch = batch - 1;
  request.evaluation_batch = batch;
  request.last_evaluation_batch = 1;
  request.threads = 1;  // more would spin on a busy machine; see the case of two
  request.policy = policy;
  return request;
}

std::vector<std::pair<std::string, GraphDef>> networks() {
  return {{"small residual", parse_network(test::kSmallResidual)},
          {"lenet", build_network(R"({"builder": "lenet"})", {1, 28, 28}, 10)},
          {"resnet8",
           build_network(R"({"builder": "resnet", "style": "cifar", "depth": 8, "width": 4})",
                         {3, 16, 16}, 10)}};
}

TEST_CASE("session: planned is measured, and nothing is allocated once it is built") {
  for (const auto& [name, def] : networks())
    for (const Policy& policy : builtin_policies()) {
      INFO(name << ", policy " << policy.name);
      Run run(def, request_of(4, policy.name));
      CHECK(run.session().measured_peak_bytes() == run.plan().planned_peak_bytes);
      run.run_all();
      CHECK(run.session().measured_peak_bytes() == run.plan().planned_peak_bytes);
      CHECK(run.session().allocations_after_start() == 0);
      std::int64_t largest = 0;
      for (const auto& program : run.plan().programs)
        largest = std::max(largest, program ? program->plan.arena_bytes : 0);
      CHECK(run.plan().planned_peak_bytes == largest);
    }
}

TEST_CASE("session: the arena is backed with pages before the first step") {
  // Enough to tell from what else the process allocates meanwhile.
  const GraphDef def = build_network(R"({"builder": "resnet", "depth": 18})", {3, 32, 32}, 10);
  SessionRequest request = request_of(2);
  request.last_batch = request.evaluation_batch = request.last_evaluation_batch = 0;
  const std::int64_t before = current_rss_bytes();
  Run run(def, request);
  const std::int64_t built = current_rss_bytes();
  CHECK(built - before >= run.plan().planned_peak_bytes);
  CHECK(run.session().fault_in_ms() > 0);
  run.step(ProgramId::train, 0);
  if (!test::kIsSanitized) CHECK(current_rss_bytes() - built < run.plan().planned_peak_bytes / 10);
}

TEST_CASE("session: two threads, nothing allocated either") {
  SessionRequest request = request_of(4);
  request.threads = 2;
  Run run(parse_network(test::kSmallResidual), request);
  run.run_all();
  CHECK(run.session().allocations_after_start() == 0);
  CHECK(run.session().measured_peak_bytes() == run.plan().planned_peak_bytes);
}

TEST_CASE("session: one allocation on the device shows") {
  Run run(parse_network(test::kSmallResidual), request_of(4));
  run.step(ProgramId::train, 0);
  REQUIRE(run.session().allocations_after_start() == 0);
  void* extra = run.device().allocate(4096);
  run.step(ProgramId::train, 1);
  CHECK(run.session().allocations_after_start() == 1);
  CHECK(run.session().measured_peak_bytes() == run.plan().planned_peak_bytes + 4096);
  run.device().release(extra);
  // A peak stays one.
  CHECK(run.session().measured_peak_bytes() == run.plan().planned_peak_bytes + 4096);
}

// The identity; its forward kernel takes 1000 bytes from the heap in step 2.
class Leaky : public Layer {
 public:
  LayerInfo infer(std::span<const TensorSpec> inputs) const override {
    LayerInfo info;
    info.output = inputs[0];
    info.passes_gradient_through = true;
    for (const Pass pass : {Pass::forward, Pass::evaluate, Pass::replay})
      info.pass(pass) = {{{Role::x}}, {{Role::y}}, {}, 0};
    return info;
  }
  Kernel make_kernel(const KernelRequest& request) const override {
    const auto bytes = static_cast<std::size_t>(num_bytes(request.inputs[0]));
    const bool is_forward = request.pass == Pass::forward;
    return [bytes, is_forward](const KernelArgs& args) {
      std::memcpy(args.write(0), args.read(0), bytes);
      if (!is_forward || args.state->step != 2) return;
      void* volatile block = std::malloc(1000);
      std::free(block);
    };
  }
  Json params() const override { return Json::object(); }
};

TEST_CASE("session: one allocation in a kernel shows") {
  if (!test::heap_is_counted()) {
    MESSAGE("the heap is not counted in this build");
    return;
  }
  LayerTypes types = builtin_layers();
  types.push_back({"leaky",
                   [](JsonReader&) -> std::unique_ptr<Layer> { return std::make_unique<Leaky>(); },
                   {}});
  const JsonNode root = parse_json(R"({"name": "net", "input": {"shape": [4]}, "layers": [
    {"name": "fc", "type": "linear", "out_features": 3},
    {"name": "leak", "type": "leaky"},
    {"name": "loss", "type": "softmax_cross_entropy"}]})",
                                   "net.json");
  JsonErrors errors("net.json");
  JsonReader reader(root, "", errors);
  const GraphDef def = read_graph_def(reader, types);
  errors.throw_if_any();
  Run run(def, request_of(4));
  for (const std::int64_t step : {0, 1}) run.step(ProgramId::train, step);
  CHECK(run.session().allocations_after_start() == 0);
  for (const std::int64_t step : {2, 3}) run.step(ProgramId::train, step);
  CHECK(run.session().allocations_after_start() == 1);
  CHECK(run.session().measured_peak_bytes() == run.plan().planned_peak_bytes + 1000);
}

TEST_CASE("session: the same bits in every run, under every policy, on every device") {
  for (const auto& [name, def] : networks()) {
    const auto hash = [&](const std::string& policy, Device* device) {
      Run run(def, request_of(4, policy), device);
      run.run_all();
      return run.session().weights_hash();
    };
    const std::string expected = hash("none", nullptr);
    CHECK(expected.size() == 16);
    CHECK(hash("none", nullptr) == expected);
    for (const std::string& policy : policy_names()) {
      INFO(name << ", policy " << policy);
      CHECK(hash(policy, nullptr) == expected);
    }
    RecordingDevice recording(true);
    CHECK(hash("none", &recording) == expected);
  }
}

TEST_CASE("session: random networks give the same bits under every policy") {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const GraphDef def = parse_network(test::random_network(seed, 18));
    const auto hash = [&](const std::string& policy) {
      Run run(def, request_of(160, policy));  // large enough to be worth a copy
      for (std::int64_t i = 0; i < 3; ++i) run.step(ProgramId::train, i);
      return run.session().weights_hash();
    };
    const std::string expected = hash("none");
    for (const std::string& policy : plannable_names()) {
      INFO("seed " << seed << ", policy " << policy);
      CHECK(hash(policy) == expected);
    }
  }
}

TEST_CASE("session: weights_hash sees one bit, evaluation changes none") {
  Run run(parse_network(test::kSmallResidual), request_of(4));
  run.step(ProgramId::train, 0);
  const std::string before = run.session().weights_hash();
  run.step(ProgramId::evaluate, 1);
  run.step(ProgramId::evaluate_last, 1);
  CHECK(run.session().weights_hash() == before);
  const float value = run.session().read(run.parameter("fc.bias"))[2];
  run.set("fc.bias", 2, std::nextafter(value, 10.0F));
  CHECK(run.session().weights_hash() != before);
}

TEST_CASE("session: a partial batch gives what a whole batch of its size gives") {
  const GraphDef def = parse_network(test::kSmallResidual);
  SessionRequest whole = request_of(4);
  whole.last_batch = 0;
  Run small(def, [&] {
    SessionRequest request = whole;
    request.batch = 3;
    return request;
  }());
  Run large(def, request_of(4));
  const std::size_t images = 3 * 36;
  std::copy_n(large.session().staged_images(0), images, small.session().staged_images(0));
  std::copy_n(large.session().staged_labels(0), 3, small.session().staged_labels(0));
  CHECK(large.step(ProgramId::train_last, 0).loss == small.step(ProgramId::train, 0).loss);
  CHECK(large.session().weights_hash() == small.session().weights_hash());
}

TEST_CASE("session: memory of the caller") {
  const GraphDef def = parse_network(test::kSmallResidual);
  Run own(def, request_of(4));
  own.run_all();
  const auto bytes = static_cast<std::size_t>(own.plan().planned_peak_bytes);
  auto* arena = static_cast<unsigned char*>(std::aligned_alloc(kAlignment, bytes + kAlignment));
  std::memset(arena, 0x5A, bytes + kAlignment);
  {
    Run run(def, request_of(4), nullptr, arena);
    run.run_all();
    CHECK(run.session().weights_hash() == own.session().weights_hash());
    CHECK(run.device().counters().num_allocations == 0);
    CHECK(run.session().allocations_after_start() == 0);
    CHECK(reinterpret_cast<unsigned char*>(run.session().staged_images(0)) > arena);
  }
  // Not a byte behind it was touched, and it is still ours.
  CHECK(std::all_of(arena + bytes, arena + bytes + kAlignment,
                    [](unsigned char byte) { return byte == 0x5A; }));
  std::free(arena);
}

template <typename ErrorType>
void check_refused(const SessionRequest& request, const std::vector<std::string>& words) {
  std::string error;
  try {
    Run run(parse_network(test::kSmallResidual), request);
  } catch (const ErrorType& caught) {
    error = caught.what();
  }
  for (const std::string& word : words) {
    INFO("looking for \"" << word << "\" in: " << error);
    CHECK(error.find(word) != std::string::npos);
  }
}

TEST_CASE("session: a last batch that cannot train is refused before step 0") {
  // One value per channel: conv1's output has one pixel, the last batch one sample.
  const GraphDef def = parse_network(R"({"name": "net", "input": {"shape": [1, 3, 3]}, "layers": [
    {"name": "conv1", "type": "conv2d", "out_channels": 2, "kernel": 3},
    {"name": "bn1", "type": "batch_norm"},
    {"name": "fc", "type": "linear", "out_features": 3},
    {"name": "loss", "type": "softmax_cross_entropy"}]})");
  SessionRequest request = request_of(4);
  CHECK_NOTHROW(Run(def, request));
  request.last_batch = 1;
  const auto solver = test::momentum_solver();
  CHECK_THROWS_WITH_AS(plan_session(def, solver.get(), request),
                       doctest::Contains("the last batch of an epoch has 1 sample"), GraphError);
  CHECK_THROWS_WITH_AS(plan_session(def, solver.get(), request), doctest::Contains("\"bn1\""),
                       GraphError);
}

TEST_CASE("session: a plan over the budget is refused with what would do") {
  SessionRequest request = request_of(4);
  const auto solver = test::momentum_solver();
  const GraphDef def = parse_network(test::kSmallResidual);
  const std::int64_t needed = plan_session(def, solver.get(), request).planned_peak_bytes;
  request.budget_bytes = needed - 1;
  check_refused<PlanError>(request,
                           {"policy \"none\"", std::to_string(needed), std::to_string(needed - 1),
                            "its peak is at", "The smallest budget that works"});
  request.budget_bytes = needed;
  CHECK_NOTHROW(Run(def, request));
  CHECK(plan_session(def, solver.get(), request).minimum_budget_bytes == needed);
}

TEST_CASE("session: a device without memory says so and keeps nothing") {
  RecordingDevice device(true);
  device.fail_allocations_after(0);
  CHECK_THROWS_AS(Run(parse_network(test::kSmallResidual), request_of(4), &device), DeviceError);
  CHECK(device.counters().live_bytes == 0);
}

TEST_CASE("session: the layer that first goes wrong is named, and nothing is updated") {
  Run run(parse_network(test::kSmallResidual), request_of(4));
  run.step(ProgramId::train, 0);
  run.set("conv2.weight", 5, std::numeric_limits<float>::infinity());
  const std::vector<float> before = run.all_parameters();
  const StepResult result = run.step(ProgramId::train, 1);
  CHECK(result.failed == kFailedLoss);
  CHECK(run.session().explain_failure(ProgramId::train, Run::state(1), result.failed) ==
        "conv2 forward");
  CHECK(run.all_parameters() == before);
}

TEST_CASE("session: a gradient that is not finite is found before its update") {
  Run run(parse_network(test::kSmallResidual), request_of(4));
  run.step(ProgramId::train, 0);
  const std::vector<float> before = run.all_parameters();
  StepState state = Run::state(1);
  state.loss_gradient = std::numeric_limits<float>::infinity();
  const StepResult result = run.session().run(ProgramId::train, state);
  REQUIRE(result.failed >= kFailedGradient);
  CHECK(run.session()
            .explain_failure(ProgramId::train, state, result.failed)
            .find("the gradient of ") == 0);
  CHECK(run.all_parameters() == before);
}

}  // namespace
}  // namespace layup
