// SPDX-License-Identifier: Apache-2.0
// Whole networks on the cpu device: layouts, fusions and library kernels under plans. The same bits
// under every policy and budget, bytes as planned, nothing allocated, and what the reference gives.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "engine/allocation_counter.h"
#include "engine/graph/device_kernels.h"
#include "memory/policy.h"
#include "scheduler/session.h"
#include "tests/support/heap.h"
#include "tests/support/networks.h"
#include "tests/support/sanitizers.h"
#include "tests/support/session_run.h"
#include "tests/support/tolerances.h"

namespace layup {
namespace {

using test::build_network;
using test::parse_network;
using Run = test::SessionRun;

SessionRequest request_of(std::int64_t batch, const std::string& policy,
                          DeviceKind device = DeviceKind::cpu) {
  SessionRequest request;
  request.device = device;
  request.batch = batch;
  request.last_batch = batch - 1;
  request.evaluation_batch = batch;
  request.last_evaluation_batch = 1;
  request.threads = 2;
  request.policy = policy;
  return request;
}

struct Network {
  const char* name;
  GraphDef def;
};

// Branches side by side, in whole blocks and in broken ones, LRN and both sigmoids in blocks, and a
// loss of training alone.
const char* const kBranches = R"({"name": "branches", "input": {"shape": [3, 12, 12]}, "layers": [
  {"name": "stem", "type": "conv2d", "out_channels": 32, "kernel": 3, "padding": 1},
  {"name": "norm", "type": "lrn", "size": 5, "alpha": 0.5},
  {"name": "left", "type": "conv2d", "out_channels": 16, "kernel": 1},
  {"name": "bend", "type": "sigmoid"},
  {"name": "right", "type": "conv2d", "out_channels": 32, "kernel": 3, "padding": 1,
   "inputs": ["norm"]},
  {"name": "curve", "type": "tanh"},
  {"name": "whole", "type": "concat", "inputs": ["bend", "curve", "norm"]},
  {"name": "pool", "type": "avg_pool2d", "kernel": 2},
  {"name": "aux", "type": "linear", "out_features": 10},
  {"name": "narrow", "type": "conv2d", "out_channels": 20, "kernel": 1, "inputs": ["pool"]},
  {"name": "slope", "type": "sigmoid"},
  {"name": "broken", "type": "concat", "inputs": ["slope", "pool"]},
  {"name": "fc", "type": "linear", "out_features": 10},
  {"name": "loss", "type": "softmax_cross_entropy"},
  {"name": "aux_loss", "type": "softmax_cross_entropy", "inputs": ["aux"], "weight": 0.3,
   "training_only": true}]})";

// The first batch norm makes gradients of its parameters alone, the second all that it has.
const char* const kNormalisedImage = R"({"name": "normalised image", "input": {"shape": [3, 9, 7]},
  "layers": [
  {"name": "first", "type": "batch_norm"},
  {"name": "conv", "type": "conv2d", "out_channels": 20, "kernel": 3},
  {"name": "second", "type": "batch_norm"},
  {"name": "fc", "type": "linear", "out_features": 10},
  {"name": "loss", "type": "softmax_cross_entropy"}]})";

// 3x3 convolutions of many channels, for which all passes are Winograd's.
const char* const kManyChannels = R"({"name": "many channels", "input": {"shape": [3, 12, 10]},
  "layers": [
  {"name": "stem", "type": "conv2d", "out_channels": 64, "kernel": 3, "padding": 1},
  {"name": "conv1", "type": "conv2d", "out_channels": 128, "kernel": 3, "padding": 1},
  {"name": "norm", "type": "batch_norm"},
  {"name": "relu", "type": "relu"},
  {"name": "conv2", "type": "conv2d", "out_channels": 64, "kernel": 3, "padding": 1,
   "bias": false},
  {"name": "pool", "type": "max_pool2d", "kernel": 2},
  {"name": "fc", "type": "linear", "out_features": 10},
  {"name": "loss", "type": "softmax_cross_entropy"}]})";

// Fused and blocked in different ways: partial blocks of channels, bottlenecks with shortcuts that
// are projections, Winograd, a plain image of three channels.
std::vector<Network> networks() {
  return {{"small residual", parse_network(test::kSmallResidual)},
          {"lenet", build_network(R"({"builder": "lenet"})", {1, 28, 28}, 10)},
          {"resnet8 of width 20",
           build_network(R"({"builder": "resnet", "style": "cifar", "depth": 8, "width": 20})",
                         {3, 16, 16}, 10)},
          {"resnet of bottlenecks",
           build_network(R"({"builder": "resnet", "blocks": [1, 1, 1, 1]})", {3, 96, 96}, 10)},
          {"branches", parse_network(kBranches)},
          {"normalised image", parse_network(kNormalisedImage)},
          {"many channels", parse_network(kManyChannels)}};
}

TEST_CASE("cpu device: planned is measured, and nothing is allocated once it is built") {
  if (!has_device(DeviceKind::cpu)) return;
  for (const Network& network : networks()) {
    INFO(std::string(network.name));
    Run run(network.def, request_of(4, "layup"));
    run.run_all();
    CHECK(run.session().measured_peak_bytes() == run.plan().planned_peak_bytes);
    CHECK(run.session().allocations_after_start() == 0);
  }
  if (!test::heap_is_counted()) MESSAGE("the sanitizers' malloc is not counted");
}

TEST_CASE("cpu device: fused and blocked operations are chosen") {
  if (!has_device(DeviceKind::cpu)) return;
  const SessionPlan plan =
      plan_session(networks()[3].def, test::momentum_solver().get(), request_of(4, "none"));
  int num_relu = 0;
  int num_add_relu = 0;
  int num_winograd = 0;
  for (const PhysicalOperation& op : plan.main().physical.operations) {
    if (op.pass != Pass::forward) continue;
    num_relu += op.fusion == Fusion::relu ? 1 : 0;
    num_add_relu += op.fusion == Fusion::add_relu ? 1 : 0;
    num_winograd += op.kernel.starts_with("winograd 4x4") ? 1 : 0;
    CHECK(!op.kernel.starts_with("onednn ref"));
  }
  CHECK(num_relu == 9);      // the stem and two in each of four blocks
  CHECK(num_add_relu == 3);  // one in each block but the last, whose relu saves a mask
  const bool has_avx512 = std::ranges::any_of(
      plan.main().physical.operations,
      [](const PhysicalOperation& op) { return op.kernel.find("avx512") != std::string::npos; });
  CHECK((num_winograd > 0) == has_avx512);
}

TEST_CASE("cpu device: a batch norm makes all its gradients at once where all are wanted") {
  if (!has_device(DeviceKind::cpu)) return;
  const auto backward_of = [&](const GraphDef& def) {
    const SessionPlan plan =
        plan_session(def, test::momentum_solver().get(), request_of(4, "none"));
    std::vector<std::string> found;
    for (const PhysicalOperation& op : plan.main().physical.operations)
      if (op.name.find("backward") != std::string::npos && op.cost_key.starts_with("batch_norm"))
        found.push_back(op.name + " x" + std::to_string(op.writes.size()));
    return found;
  };
  CHECK(backward_of(parse_network(kNormalisedImage)) ==
        std::vector<std::string>{"second backward x3", "first backward_params x3"});
  CHECK(backward_of(networks()[3].def).size() == 17);  // one for each batch norm
}

TEST_CASE("cpu device: what comes in blocks goes on in blocks") {
  if (!has_device(DeviceKind::cpu)) return;
  const SessionPlan plan =
      plan_session(parse_network(kBranches), test::momentum_solver().get(), request_of(4, "none"));
  const auto kernel_of = [&](const std::string& name) {
    for (const PhysicalOperation& op : plan.main().physical.operations)
      if (op.name == name) return op.kernel;
    return std::string("none");
  };
  for (const char* pass : {" forward", " backward_data"}) {
    CHECK(kernel_of(std::string("norm") + pass) == "vector");
    CHECK(kernel_of(std::string("pool") + pass) == "vector");
    CHECK(kernel_of(std::string("bend") + pass) == "by element");
    CHECK(kernel_of(std::string("whole") + pass) == "block copies");
    CHECK(kernel_of(std::string("broken") + pass) == "reference");
  }
  // Nothing is moved between the stem and the pooling.
  for (const PhysicalOperation& op : plan.main().physical.operations)
    if (op.kind == OpKind::reorder && op.pass == Pass::forward)
      for (const char* early :
           {"stem:y", "norm:y", "left:y", "bend:y", "right:y", "curve:y", "whole:y"})
        CHECK_MESSAGE(plan.main().physical.value(op.reads[0]).name != early, op.name);
}

TEST_CASE("cpu device: the same bits under every policy, at every budget") {
  if (!has_device(DeviceKind::cpu)) return;
  for (const Network& network : networks()) {
    const auto hash = [&](const std::string& policy, std::optional<std::int64_t> budget) {
      SessionRequest request = request_of(4, policy);
      request.budget_bytes = budget;
      Run run(network.def, request);
      if (test::kIsSanitized)
        run.step(ProgramId::train, 0);
      else
        run.run_all();
      return run.session().weights_hash();
    };
    const std::string expected = hash("none", {});
    for (const std::string& policy : policy_names()) {
      if (test::kIsSanitized && policy != "vdnn_all") continue;
      INFO(std::string(network.name) << ", policy " << policy);
      CHECK(hash(policy, {}) == expected);
    }
    const SessionPlan least =
        plan_session(network.def, test::momentum_solver().get(), request_of(4, "layup"));
    const std::int64_t most =
        plan_session(network.def, test::momentum_solver().get(), request_of(4, "none"))
            .planned_peak_bytes;
    INFO(std::string(network.name) << ", layup within budgets");
    CHECK(hash("layup", least.minimum_budget_bytes.value()) == expected);
    CHECK(hash("layup", (least.minimum_budget_bytes.value() + most) / 2) == expected);
  }
}

TEST_CASE("cpu device: random networks give the same bits under every policy") {
  if (!has_device(DeviceKind::cpu)) return;
  for (std::uint64_t seed = 0; seed < (test::kIsSanitized ? 3 : 10); ++seed) {
    const GraphDef def = parse_network(test::random_network(seed, 18));
    const auto hash = [&](const std::string& policy) {
      Run run(def, request_of(4, policy));
      for (std::int64_t i = 0; i < 2; ++i) run.step(ProgramId::train, i);
      return run.session().weights_hash();
    };
    const std::string expected = hash("none");
    for (const Policy& policy : builtin_policies()) {
      INFO("seed " << seed << ", policy " << policy.name);
      CHECK(hash(policy.name) == expected);
    }
  }
}

TEST_CASE("cpu device: trains like the reference, from the same weights to near ones") {
  if (!has_device(DeviceKind::cpu)) return;
  for (const Network& network : networks()) {
    INFO(std::string(network.name));
    Run reference(network.def, request_of(4, "none", DeviceKind::reference));
    Run cpu(network.def, request_of(4, "none"));
    CHECK(cpu.session().weights_hash() == reference.session().weights_hash());  // in logical order
    const std::vector<float> expected = reference.run_all();
    const std::vector<float> found = cpu.run_all();
    // All but the fourth step, by which the rounding of three updates has grown.
    for (std::size_t i = 0; i + 1 < expected.size(); ++i)
      CHECK(std::abs(found[i] - expected[i]) <=
            (i == 0 ? kDeviceLayer : kDeviceLoss) * std::abs(expected[i]));
  }
}

TEST_CASE("cpu device: tensors are written and read in logical order") {
  if (!has_device(DeviceKind::cpu)) return;
  Run run(networks()[1].def, request_of(4, "none"));
  Session& session = run.session();
  for (const PersistentTensor& tensor : session.parameters()) {
    std::vector<float> values(static_cast<std::size_t>(tensor.count()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 1;
    session.write(tensor, values);
    CHECK(session.read(tensor) == values);
  }
}

}  // namespace
}  // namespace layup
