// SPDX-License-Identifier: Apache-2.0
// How good the plans of the policies are, on networks and machines that need not be here, and what
// each policy does with which value.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>

#include "engine/error.h"
#include "layers/registry.h"
#include "memory/plan_memory.h"
#include "scheduler/session_plan.h"
#include "tests/support/networks.h"
#include "tests/support/planned_network.h"

namespace layup {
namespace {

using test::build_network;
using test::parse_network;

using test::k40m;
using Network = test::PlannedNetwork;

const std::vector<Network>& networks() {
  static const std::vector<Network> all = [] {
    std::vector<Network> made;
    const Shape sample = {3, 224, 224};
    for (const int depth : {34, 50, 101, 152})
      made.emplace_back(
          "resnet" + std::to_string(depth),
          build_network(R"({"builder": "resnet", "depth": )" + std::to_string(depth) + "}", sample,
                        1000),
          32);
    made.emplace_back("vgg16", build_network(R"({"builder": "vgg", "depth": 16})", sample, 1000),
                      32);
    return made;
  }();
  return all;
}

const Network& network(const std::string& name) {
  const auto& all = networks();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Network& n) { return n.name == name; });
  REQUIRE(found != all.end());
  return *found;
}

TEST_CASE("policies: layup saves more than 92 % of what caffe needs on the best network") {
  double best = 0;
  for (const Network& network : networks()) {
    const auto caffe = static_cast<double>(network.plan("caffe").plan.arena_bytes);
    const double saved = 1 - static_cast<double>(network.smallest("layup")) / caffe;
    MESSAGE(network.name << ": " << 100 * saved << " % less than caffe");
    best = std::max(best, saved);
  }
  CHECK(best >= 0.92);
}

TEST_CASE("policies: layup's step in a quarter of caffe's memory") {
  double sum = 0;
  int count = 0;
  for (const Network& network : networks()) {
    const MemoryPlan caffe = network.plan("caffe").plan;
    const std::int64_t budget = caffe.arena_bytes / 4;
    if (caffe.parameter_bytes + caffe.solver_state_bytes > budget) continue;
    const PlanResult result = network.plan("layup", budget);
    INFO(network.name);
    CHECK(result.feasible);
    CHECK(result.plan.arena_bytes <= budget);
    const double ratio = result.timeline.step_ms / network.cost.compute_ms();
    MESSAGE(network.name << ": step over compute " << ratio);
    sum += ratio;
    ++count;
  }
  REQUIRE(count >= 4);
  CHECK(sum / count <= 1.12);
}

TEST_CASE("policies: packing wastes next to nothing") {
  for (const Network& network : networks())
    for (const std::string policy : {"none", "layup"}) {
      const MemoryPlan plan = network.plan(policy).plan;
      const double ratio =
          static_cast<double>(plan.arena_bytes) / static_cast<double>(plan.max_live_bytes);
      INFO(network.name << ", " << policy << ": arena over live bytes " << ratio);
      CHECK(ratio >= 1);
      CHECK(ratio <= 1.005);
    }
}

TEST_CASE("policies: with more memory a plan is never slower, and never smaller for nothing") {
  for (const std::string name : {"resnet50", "vgg16", "resnet50 beside copies"})
    for (const std::string policy : {"layup", "sublinear", "auto"}) {
      Network net = network(name.substr(0, name.find(' ')));
      if (name.ends_with("copies")) net.cost.interference = 0.5;
      const std::int64_t least = net.smallest(policy);
      const std::int64_t most = net.plan("none").plan.arena_bytes;
      constexpr int kBudgets = 12;
      std::int64_t last_peak = 0;
      double last_step = std::numeric_limits<double>::infinity();
      for (int i = 0; i < kBudgets; ++i) {
        const std::int64_t budget = least + (most - least) * i / (kBudgets - 1);
        INFO(name << ", " << policy << ", budget " << budget);
        const PlanResult result = net.plan(policy, budget);
        CHECK(result.feasible);
        CHECK(result.plan.arena_bytes <= budget);
        CHECK(result.plan.arena_bytes >= last_peak);
        last_peak = result.plan.arena_bytes;
        // Times are compared in millionths of a step.
        CHECK(result.timeline.step_ms <= last_step * (1 + 2e-6));
        last_step = result.timeline.step_ms;
      }
      CHECK(last_step == doctest::Approx(net.cost.compute_ms()));
      CHECK_FALSE(net.plan(policy, least - 1).feasible);
    }
}

TEST_CASE("policies: cheap convolutions are computed again, by cost") {
  // VGG's first convolution makes 411 MB of three channels: dearer to copy than to compute. Its
  // ReLU lies over it, and backward reads that.
  CHECK(network("vgg16").decisions("layup").at("features.1:y") == Retention::recompute);
  // Expanding convolutions (64 to 256 channels, ...) all take 2.5 ms of compute. Copying takes 10,
  // 5, 2.6 and 1.3 ms in the four stages, so that those of the third hang on what else their chain
  // costs.
  const Network& resnet = network("resnet50");
  std::int64_t bytes[2] = {0, 0};
  for (const ValueId value : resnet.uses.candidates) {
    const std::string& name = resnet.graph.value(value).name;
    const Retention retention = resnet.decisions("layup").at(name);
    CAPTURE(name);
    if (!name.ends_with(".conv3:y")) continue;
    if (name.starts_with("layer1") || name.starts_with("layer2"))
      CHECK(retention == Retention::recompute);
    if (name.starts_with("layer4")) CHECK(retention == Retention::offload);
    bytes[retention == Retention::recompute ? 1 : 0] += resnet.graph.value(value).bytes;
  }
  CHECK(bytes[1] > 2 * bytes[0]);
  // Costs decide: with a link a thousand times as fast everything is worth a copy.
  Network fast("resnet50",
               build_network(R"({"builder": "resnet", "depth": 50})", {3, 224, 224}, 1000), 32);
  fast.cost.offload_bytes_per_s *= 1000;
  fast.cost.latency_ms = 0;
  for (const auto& [name, retention] : fast.decisions("layup")) {
    CAPTURE(name);
    CHECK(retention != Retention::recompute);
  }
}

TEST_CASE("policies: where copies take time from kernels, layup copies less and is faster for it") {
  Network slowed("resnet50",
                 build_network(R"({"builder": "resnet", "depth": 50})", {3, 224, 224}, 1000), 16);
  const std::int64_t budget = slowed.plan("none").plan.arena_bytes * 4 / 10;
  const PlanResult free = slowed.plan("layup", budget);
  slowed.cost.interference = 0.9;
  const PlanResult known = slowed.plan("layup", budget);
  CHECK(known.feasible);
  CHECK(known.plan.host_bytes < free.plan.host_bytes);
  CHECK(known.timeline.recompute_ms > free.timeline.recompute_ms);
  // The plan that does not know of it takes longer than it thinks, and longer than the other.
  const double blind_ms = simulate(slowed.graph, slowed.cost, free.plan.actions).step_ms;
  CHECK(blind_ms > free.timeline.step_ms);
  CHECK(known.timeline.step_ms < blind_ms);
}

// The built-in layer, but backward reads its output, as in the published systems (no masks).
class PlainRelu : public Layer {
 public:
  explicit PlainRelu(std::unique_ptr<Layer> relu) : relu_(std::move(relu)) {}
  LayerInfo infer(std::span<const TensorSpec> inputs) const override {
    return relu_->infer(inputs);
  }
  Kernel make_kernel(const KernelRequest& request) const override {
    return relu_->make_kernel(request);
  }
  Json params() const override { return relu_->params(); }

 private:
  std::unique_ptr<Layer> relu_;
};

std::unique_ptr<Layer> read_plain_relu(JsonReader& params) {
  return std::make_unique<PlainRelu>(find_layer_type(builtin_layers(), "relu")->read(params));
}

constexpr const char* kAlexNet = R"({"name": "alexnet", "input": {"shape": [3, 224, 224]},
 "layers": [
  {"name": "conv1", "type": "conv2d", "out_channels": 64, "kernel": 11, "stride": 4, "padding": 2},
  {"name": "relu1", "type": "relu"},
  {"name": "pool1", "type": "max_pool2d", "kernel": 3, "stride": 2},
  {"name": "conv2", "type": "conv2d", "out_channels": 192, "kernel": 5, "padding": 2},
  {"name": "relu2", "type": "relu"},
  {"name": "pool2", "type": "max_pool2d", "kernel": 3, "stride": 2},
  {"name": "conv3", "type": "conv2d", "out_channels": 384, "kernel": 3, "padding": 1},
  {"name": "relu3", "type": "relu"},
  {"name": "conv4", "type": "conv2d", "out_channels": 256, "kernel": 3, "padding": 1},
  {"name": "relu4", "type": "relu"},
  {"name": "conv5", "type": "conv2d", "out_channels": 256, "kernel": 3, "padding": 1},
  {"name": "relu5", "type": "relu"},
  {"name": "pool5", "type": "max_pool2d", "kernel": 3, "stride": 2},
  {"name": "fc6", "type": "linear", "out_features": 4096},
  {"name": "relu6", "type": "relu"},
  {"name": "fc7", "type": "linear", "out_features": 4096},
  {"name": "relu7", "type": "relu"},
  {"name": "fc8", "type": "linear", "out_features": 1000},
  {"name": "loss", "type": "softmax_cross_entropy"}]})";

GraphDef alexnet(bool with_masks) {
  LayerTypes types = builtin_layers();
  if (!with_masks)
    for (LayerType& type : types)
      if (type.name == "relu") type.read = read_plain_relu;
  const JsonNode root = parse_json(kAlexNet, "alexnet.json");
  JsonErrors errors("alexnet.json");
  JsonReader reader(root, "", errors);
  GraphDef def = read_graph_def(reader, types);
  errors.throw_if_any();
  return def;
}

std::vector<std::string> names_with(const std::map<std::string, Retention>& decisions,
                                    Retention wanted) {
  std::vector<std::string> names;
  for (const auto& [name, retention] : decisions)
    if (retention == wanted) names.push_back(name);
  return names;
}

using Names = std::vector<std::string>;

TEST_CASE("policies: the published table of layer types is met on AlexNet's shapes, by cost") {
  // Convolution and linear are offloaded (their ReLU lies over their output), pooling recomputed;
  // so is the batch at hand, which lies in its staging slot.
  const Network net("alexnet", alexnet(false), 32);
  const std::map<std::string, Retention> decisions = net.decisions("layup");
  for (const char* name :
       {"relu1:y", "relu2:y", "relu3:y", "relu4:y", "relu5:y", "relu6:y", "relu7:y", "fc8:y"}) {
    CAPTURE(name);
    CHECK(decisions.at(name) == Retention::offload);
  }
  CHECK(names_with(decisions, Retention::recompute) ==
        Names{"input", "pool1:y", "pool2:y", "pool5:y"});
  // With masks nobody reads relu1's output in backward, so that pooling is all that carries the
  // convolution's work on.
  const Network masked("alexnet", alexnet(true), 32);
  CHECK(names_with(masked.decisions("layup"), Retention::recompute) == Names{"input"});
}

TEST_CASE("policies: vdnn_all and vdnn_conv") {
  const Network net("alexnet", alexnet(true), 32);
  CHECK(names_with(net.decisions("vdnn_all"), Retention::offload) ==
        Names{"fc8:y", "input", "pool1:y", "pool2:y", "pool5:y", "relu1:y", "relu2:y", "relu3:y",
              "relu4:y", "relu5:y", "relu6:y", "relu7:y"});
  CHECK(names_with(net.decisions("vdnn_conv"), Retention::offload) ==
        Names{"input", "pool1:y", "pool2:y", "relu3:y", "relu4:y"});
  CHECK(names_with(net.decisions("vdnn_dyn", 0), Retention::offload).empty());
  CHECK(net.decisions("vdnn_dyn", 1) == net.decisions("vdnn_conv"));
  CHECK(net.decisions("vdnn_dyn", 2) == net.decisions("vdnn_all"));
  for (const std::string policy : {"vdnn_all", "vdnn_conv"}) {
    CHECK(names_with(net.decisions(policy), Retention::recompute).empty());
    CHECK(net.decide(policy).copy_style == CopyStyle::layer_by_layer);
    CHECK(net.plan(policy).timeline.recompute_ms == 0);
    CHECK(net.plan(policy).plan.host_bytes > 0);
  }
  CHECK(names_with(net.decisions("none"), Retention::keep).size() == net.uses.candidates.size());
}

TEST_CASE("policies: sublinear keeps what crosses from segment to segment") {
  // 36 convolutions of equal shapes: each output is read by the next one's backward.
  std::string layers;
  for (int i = 0; i < 36; ++i)
    layers += R"({"name": "conv)" + std::to_string(i) +
              R"(", "type": "conv2d", "out_channels": 4, "kernel": 3, "padding": 1},)";
  const Network net("chain", parse_network(R"({"name": "chain", "input": {"shape": [4, 32, 32]},
    "layers": [)" + layers + R"({"name": "fc", "type": "linear", "out_features": 4},
    {"name": "loss", "type": "softmax_cross_entropy"}]})"),
                    128);
  const Decisions decisions = net.decide("sublinear");
  std::vector<int> kept;
  for (int i = 0; i < 36; ++i)
    for (const ValueId value : net.uses.candidates)
      if (net.graph.value(value).name == "conv" + std::to_string(i) + ":y" &&
          decisions.retention[index(value)] == Retention::keep)
        kept.push_back(i);
  // The last segment stays as a whole. Before it one value per cut, every sixth or so.
  REQUIRE(kept.size() > 6);
  CHECK(kept.back() == 35);
  std::size_t last = kept.size() - 1;
  while (last > 0 && kept[last - 1] == kept[last] - 1) --last;
  CHECK(last >= 4);
  CHECK(last <= 6);
  int before = -1;
  for (std::size_t i = 0; i <= last; ++i) {
    CAPTURE(kept[i]);
    CHECK(kept[i] - before >= 4);
    CHECK(kept[i] - before <= 9);
    before = kept[i];
  }
  CHECK(net.plan("sublinear").plan.host_bytes == 0);
  CHECK(net.plan("sublinear").plan.arena_bytes < net.plan("none").plan.arena_bytes / 2);
}

TEST_CASE("policies: the host tier has a budget of its own") {
  const Network& net = network("resnet50");
  for (const std::string policy : {"layup", "sublinear", "none", "auto"}) {
    CAPTURE(policy);
    const PlanResult result = net.plan(policy, {}, 0);
    CHECK(result.feasible);
    CHECK(result.plan.host_bytes == 0);
    for (const Action& action : result.plan.actions) {
      const bool computes = action.kind == ActionKind::run || action.kind == ActionKind::replay;
      REQUIRE(computes);
    }
  }
  // Whether little of it is worth using depends on the budget of the device.
  const std::int64_t host_budget = std::int64_t{600} << 20;
  const std::int64_t least = net.plan("layup", {}, host_budget).plan.arena_bytes;
  const std::int64_t most = net.plan("none").plan.arena_bytes;
  std::int64_t host_bytes = 0;
  for (int i = 0; i < 6; ++i) {
    const PlanResult some = net.plan("layup", least + (most - least) * i / 6, host_budget);
    CHECK(some.feasible);
    CHECK(some.plan.host_bytes <= host_budget);
    host_bytes = std::max(host_bytes, some.plan.host_bytes);
  }
  CHECK(host_bytes > 0);
  CHECK_FALSE(net.plan("vdnn_all", {}, host_budget).feasible);

  SessionRequest request;
  request.batch = 32;
  request.policy = "vdnn_all";
  request.host_budget_bytes = std::int64_t{100} << 20;
  request.machine = &k40m();
  const auto solver = test::momentum_solver();
  const SessionPlan refused = plan_session(alexnet(true), solver.get(), request);
  CHECK(refused.feasible);  // AlexNet's inputs are smaller than that
  request.host_budget_bytes = 1 << 20;
  const SessionPlan plan = plan_session(alexnet(true), solver.get(), request);
  CHECK_THROWS_WITH_AS(require_feasible(plan),
                       doctest::Contains((std::to_string(refused.host_bytes) + " bytes").c_str()),
                       PlanError);
  CHECK_THROWS_WITH_AS(require_feasible(plan),
                       doctest::Contains("of host memory but the host budget is 1048576 bytes"),
                       PlanError);
}

TEST_CASE("policies: 2504 layers in 11,580 MiB") {
  const Network net(
      "deep",
      build_network(R"({"builder": "resnet", "blocks": [6, 32, 790, 6]})", {3, 224, 224}, 1000),
      16);
  const auto start = std::chrono::steady_clock::now();
  const PlanResult result = net.plan("layup", std::int64_t{11580} << 20);
  const double planning_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  MESSAGE("planned in " << planning_s << " s: " << result.plan.arena_bytes << " bytes, step over "
                        << "compute " << result.timeline.step_ms / net.cost.compute_ms());
  CHECK(result.feasible);
  CHECK(result.plan.arena_bytes <= std::int64_t{11580} << 20);
  CHECK(planning_s < 20);  // no more than a guard against what is quadratic
  CHECK_FALSE(net.plan("none", std::int64_t{11580} << 20).feasible);
}

}  // namespace
}  // namespace layup
