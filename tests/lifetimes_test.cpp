// SPDX-License-Identifier: Apache-2.0
// When values must be on the device.
#include <doctest/doctest.h>

#include <algorithm>

#include "memory/lifetimes.h"
#include "memory/plan_memory.h"
#include "tests/support/networks.h"
#include "tests/support/random_graph.h"

namespace layup {
namespace {

using test::parse_network;
using test::physical_training;

std::vector<Action> run_in_order(const PhysicalGraph& graph) {
  std::vector<Action> actions;
  for (std::uint32_t i = 0; i < graph.operations.size(); ++i)
    actions.push_back({ActionKind::run, i, {}});
  return actions;
}

std::string name_of(const PhysicalGraph& graph, const Residency& stay) {
  return stay.value == kWorkspace ? "workspace" : graph.value(stay.value).name;
}

const Residency* find(const PhysicalGraph& graph, const std::vector<Residency>& stays,
                      const std::string& name) {
  for (const Residency& stay : stays)
    if (name_of(graph, stay) == name) return &stay;
  return nullptr;
}

std::int32_t position(const PhysicalGraph& graph, const std::string& operation) {
  for (std::size_t i = 0; i < graph.operations.size(); ++i)
    if (graph.operations[i].name == operation) return static_cast<std::int32_t>(i);
  FAIL("no operation " << operation);
  return -1;
}

TEST_CASE("lifetimes: from the write to the last use, half-open") {
  const PhysicalGraph graph = physical_training(parse_network(test::kSmallResidual), 2);
  const std::vector<Residency> stays = compute_lifetimes(graph, run_in_order(graph), true);
  const auto check = [&](const std::string& value, const std::string& from, const std::string& to) {
    CAPTURE(value);
    const Residency* stay = find(graph, stays, value);
    REQUIRE(stay != nullptr);
    CHECK(stay->begin == position(graph, from));
    CHECK(stay->end == position(graph, to) + 1);
    CHECK(stay->bytes >= num_bytes(graph.value(stay->value).spec));
    CHECK(stay->bytes % kAlignment == 0);
  };
  check("conv1:y", "conv1 forward", "bn1 backward_data");  // batch norm reads its input
  check("bn1:y", "bn1 forward", "relu1 forward");          // relu reads its output instead
  check("relu1:y", "relu1 forward", "relu1 backward_data");
  check("conv2:y", "conv2 forward", "sum forward");
  check("drop:y", "drop forward", "fc backward_params");
  check("labels", "load labels", "loss backward_data");
  check("conv1.weight:grad", "conv1 backward_params", "conv1.weight update");
}

TEST_CASE("lifetimes: what is persistent is there all the time") {
  const PhysicalGraph graph = physical_training(parse_network(test::kSmallResidual), 2);
  const std::vector<Residency> stays = compute_lifetimes(graph, run_in_order(graph), true);
  for (const char* name :
       {"conv1.weight", "conv1.weight:momentum", "bn1.running_mean", "loss:y", "staging:images"}) {
    CAPTURE(name);
    const Residency* stay = find(graph, stays, name);
    REQUIRE(stay != nullptr);
    CHECK(stay->begin == 0);
    CHECK(stay->end == static_cast<std::int32_t>(graph.operations.size()));
    CHECK(stay->over == -1);
  }
}

TEST_CASE(
    "lifetimes: a value takes over the bytes of an operand that ends, where that is declared") {
  const PhysicalGraph graph = physical_training(parse_network(test::kSmallResidual), 2);
  const std::vector<Residency> stays = compute_lifetimes(graph, run_in_order(graph), true);
  const auto over = [&](const std::string& name) -> std::string {
    const Residency* stay = find(graph, stays, name);
    REQUIRE(stay != nullptr);
    return stay->over < 0 ? "" : name_of(graph, stays[static_cast<std::size_t>(stay->over)]);
  };
  CHECK(over("relu1:y") == "bn1:y");
  // Not over relu1:y, which backward reads.
  CHECK(over("sum:y") == "conv2:y");
  // Not over pool:dx0 alone or conv2:dx0 by chance: the first that the operation declares.
  CHECK(over("relu1:grad sum1") == "pool:dx0");
  // A convolution declares nothing.
  CHECK(over("conv2:y") == "");
  for (const Residency& stay : compute_lifetimes(graph, run_in_order(graph), false))
    CHECK(stay.over == -1);
}

TEST_CASE("lifetimes: a replay starts a new stay, a copy lasts until it is waited for") {
  const PhysicalGraph graph = physical_training(parse_network(test::kSmallResidual), 2);
  std::vector<Action> actions = run_in_order(graph);
  const ValueId value =
      graph.operations[static_cast<std::size_t>(position(graph, "relu1 forward"))].writes[0];
  const auto at = [&](const std::string& operation) {
    const auto found = std::find_if(actions.begin(), actions.end(), [&](const Action& action) {
      return action.kind == ActionKind::run && operation_of(graph, action).name == operation;
    });
    return static_cast<std::int32_t>(found - actions.begin());
  };
  const auto insert = [&](std::int32_t where, ActionKind kind) {
    actions.insert(actions.begin() + where, Action{kind, 0, value});
  };
  insert(at("conv2 backward_params"), ActionKind::wait_prefetch);
  insert(at("loss backward_data"), ActionKind::prefetch);
  insert(at("loss forward"), ActionKind::wait_offload);
  insert(at("pool forward"), ActionKind::offload);
  std::vector<Residency> of_value;
  for (const Residency& stay : compute_lifetimes(graph, actions, true))
    if (stay.value == value) of_value.push_back(stay);
  REQUIRE(of_value.size() == 2);
  CHECK(of_value[0].begin == at("relu1 forward"));
  // Up to and with the wait, not the last use.
  CHECK(of_value[0].end == at("loss forward"));
  // The bytes are taken when the copy back is issued.
  CHECK(of_value[1].begin == at("loss backward_data") - 1);
  CHECK(of_value[1].end == at("relu1 backward_data") + 1);
}

TEST_CASE("lifetimes: sorted, and in place only behind what came before") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed);
    const PhysicalGraph graph = physical_training(parse_network(test::random_network(seed, 20)), 2);
    const std::vector<Residency> stays = compute_lifetimes(graph, run_in_order(graph), true);
    for (std::size_t i = 0; i < stays.size(); ++i) {
      CHECK(stays[i].begin < stays[i].end);
      if (i > 0) CHECK(stays[i - 1].begin <= stays[i].begin);
      if (stays[i].over < 0) continue;
      REQUIRE(stays[i].over < static_cast<std::int32_t>(i));
      const Residency& from = stays[static_cast<std::size_t>(stays[i].over)];
      CHECK(from.end == stays[i].begin + 1);
      CHECK(from.bytes == stays[i].bytes);
    }
  }
}

}  // namespace
}  // namespace layup
