// SPDX-License-Identifier: Apache-2.0
// Walks all layers and their examples. A layer that is added to layers/meson.build is tested here
// without another line.
#include <doctest/doctest.h>

#include "layers/registry.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/layer_checks.h"
#include "tests/support/layer_harness.h"

using namespace layup;

namespace {

Problems all_checks(const LayerType& type, const LayerExample& example) {
  Problems all;
  const auto gather = [&](const char* check, const Problems& problems) {
    for (const std::string& problem : problems) all.push_back(std::string(check) + ": " + problem);
  };
  gather("json", check_json(type, example));
  const auto layer = read_layer(type, example.params);
  const LayerSubject subject{layer.get(), example.inputs};
  gather("contract", check_contract(subject));
  gather("gradients", check_gradients(subject));
  gather("in place", check_in_place(subject));
  gather("reads", check_reads(subject));
  gather("repeat", check_repeat(subject));
  gather("threads", check_threads(subject));
  gather("allocations", check_allocations(subject, num_allocations));
  return all;
}

std::string describe(const LayerType& type, const LayerExample& example) {
  std::string text = type.name + " " + example.params.dump();
  for (const TensorSpec& input : example.inputs) text += " " + to_string(input);
  return text;
}

}  // namespace

TEST_CASE("every layer satisfies its contract for each of its examples") {
  for (const LayerType& type : builtin_layers()) {
    CAPTURE(type.name);
    CHECK(!type.examples.empty());
    for (const LayerExample& example : type.examples) {
      INFO(describe(type, example));
      for (const std::string& problem : all_checks(type, example)) FAIL_CHECK(problem);
    }
  }
}

TEST_CASE("layer types have different names and are found by them") {
  const LayerTypes& types = builtin_layers();
  CHECK(!types.empty());
  for (const LayerType& type : types) CHECK(find_layer_type(types, type.name) == &type);
  CHECK(find_layer_type(types, "no_such_layer") == nullptr);
}
