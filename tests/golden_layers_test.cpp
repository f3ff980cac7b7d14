// SPDX-License-Identifier: Apache-2.0
// Layers of the reference device against PyTorch's values. $LAYUP_GOLDEN_DIR points the test at
// another folder of the same format.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "engine/error.h"
#include "layers/registry.h"
#include "tests/support/device_layer.h"
#include "tests/support/golden.h"
#include "tests/support/layer_harness.h"
#include "tests/support/tolerances.h"

using namespace layup;

namespace {

using Problems = std::vector<std::string>;

// The keys of a network file: what is left without those that describe the case.
Json layer_params(const JsonNode& layer) {
  Json params = layer.to_json();
  for (const char* key : {"type", "labels", "reduction"}) params.erase(key);
  return params;
}

class CaseRun {
 public:
  CaseRun(const JsonNode& test_case, const Layer& layer)
      : case_(test_case), harness_(layer, inputs(test_case)) {}

  Problems run() {
    harness_.fill(0);  // buffers start at their initial values
    load_inputs();
    load_parameters();
    load_upstream();
    harness_.run_step();
    compare("output", {Role::y}, golden_member(case_, "output"));
    compare_gradients();
    compare_buffers();
    // Evaluation is the forward pass where there are no running statistics.
    if (harness_.info().buffers.empty()) {
      harness_.run(Pass::evaluate);
      compare("output in evaluation", {Role::y}, golden_member(case_, "output"));
    }
    return problems_;
  }

 private:
  static std::vector<TensorSpec> inputs(const JsonNode& test_case) {
    std::vector<TensorSpec> specs;
    for (const JsonNode& input : items(golden_member(test_case, "inputs")))
      specs.push_back({golden_shape(golden_member(input, "shape"))});
    return specs;
  }

  static const JsonNode::Array& items(const JsonNode& list) {
    if (list.array() == nullptr) throw DataError("expected a list");
    return *list.array();
  }

  void load(Slot slot, const JsonNode& tensor) {
    const GoldenTensor golden = expand_golden(tensor);
    const std::span<float> values = harness_.values(slot);
    if (golden.values.size() != values.size())
      throw DataError("the case gives " + to_string(golden.shape) + " for " + to_string(slot) +
                      ", which is " + to_string(harness_.spec(slot)));
    std::ranges::copy(golden.values, values.begin());
  }

  void load_inputs() {
    int i = 0;
    for (const JsonNode& input : items(golden_member(case_, "inputs"))) load({Role::x, i++}, input);
    const JsonNode& layer = golden_member(case_, "layer");
    if (!harness_.info().is_loss) return;
    if (golden_string(layer, "reduction") != "mean")
      throw DataError("reduction " + golden_string(layer, "reduction") + " is not built");
    const std::vector<double> labels = golden_numbers(golden_member(layer, "labels"));
    const auto slot = harness_.values<std::int32_t>({Role::labels});
    if (labels.size() != slot.size()) throw DataError("a label for each sample is needed");
    std::ranges::transform(labels, slot.begin(),
                           [](double label) { return static_cast<std::int32_t>(label); });
  }

  void load_parameters() {
    const auto& parameters = harness_.info().parameters;
    const JsonNode& given = golden_member(case_, "params");
    if (given.object() == nullptr || given.object()->size() != parameters.size())
      throw DataError("the layer has " + std::to_string(parameters.size()) +
                      " parameters; the case gives others");
    for (std::size_t i = 0; i < parameters.size(); ++i)
      load({Role::parameter, static_cast<int>(i)}, golden_member(given, parameters[i].name));
  }

  void load_upstream() {
    const JsonNode& upstream = golden_member(case_, "output_grad");
    if (harness_.info().is_loss)
      harness_.state().loss_gradient = expand_golden(upstream).values.at(0);
    else
      load({Role::dy}, upstream);
  }

  void compare(const std::string& name, Slot slot, const JsonNode& expected) {
    const std::string problem =
        compare_golden(name, harness_.values(slot), golden_numbers(expected), kGoldenLayer);
    if (!problem.empty()) problems_.push_back(problem);
  }

  void compare_gradients() {
    const JsonNode::Array& input_grads = items(golden_member(case_, "input_grads"));
    const JsonNode::Array& given = items(golden_member(case_, "inputs"));
    if (input_grads.size() != given.size())
      throw DataError("the case needs a gradient for each input");
    for (std::size_t i = 0; i < input_grads.size(); ++i)
      compare("gradient of input " + std::to_string(i), {Role::dx, static_cast<int>(i)},
              input_grads[i]);
    const auto& parameters = harness_.info().parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i)
      compare("gradient of " + parameters[i].name, {Role::parameter_gradient, static_cast<int>(i)},
              golden_member(golden_member(case_, "param_grads"), parameters[i].name));
  }

  void compare_buffers() {
    const auto& buffers = harness_.info().buffers;
    for (std::size_t i = 0; i < buffers.size(); ++i)
      compare(buffers[i].name, {Role::buffer, static_cast<int>(i)},
              golden_member(case_, buffers[i].name));
  }

  const JsonNode& case_;
  LayerHarness harness_;
  Problems problems_;
};

Problems run_case(const JsonNode& test_case) {
  try {
    const JsonNode& description = golden_member(test_case, "layer");
    const std::string type_name = golden_string(description, "type");
    const LayerType* type = find_layer_type(builtin_layers(), type_name);
    if (type == nullptr) return {"layer type '" + type_name + "' is not built"};
    const auto layer = read_layer(*type, layer_params(description));
    Problems problems = CaseRun(test_case, *layer).run();
    if (has_device(DeviceKind::cpu)) {
      const DeviceLayer device_layer(*layer, type_name, DeviceKind::cpu);
      for (const std::string& problem : CaseRun(test_case, device_layer).run())
        problems.push_back("cpu device: " + problem);
    }
    return problems;
  } catch (const std::exception& error) {
    return {error.what()};
  }
}

JsonNode case_named(const std::string& name) {
  for (const JsonNode& test_case : read_golden_cases("tests/golden", "layers.json"))
    if (golden_string(test_case, "name") == name) return test_case;
  throw DataError("no golden case " + name);
}

}  // namespace

TEST_CASE("golden: every layer case of the folder") {
  std::vector<JsonNode> cases;
  try {
    cases = read_golden_cases(golden_dir(), "layers.json");
  } catch (const Error& error) {
    FAIL(std::string(error.what()));
  }
  for (const JsonNode& test_case : cases)
    for (const std::string& problem : run_case(test_case)) {
      const std::string name = golden_string(test_case, "name");
      INFO("golden case ", name);
      FAIL_CHECK(problem);
    }
  MESSAGE("golden cases run: " << cases.size());
}

TEST_CASE("golden: a case of a type that is not built says so") {
  const JsonNode test_case = parse_json(R"({"layer": {"type": "no_such_layer"}})", "case");
  CHECK(run_case(test_case) == Problems{"layer type 'no_such_layer' is not built"});
}

TEST_CASE("golden: a wrong reference value is found in every kind of result") {
  struct Change {
    const char* case_name;
    const char* member;
    const char* reported;
  };
  for (const Change& change : {Change{"linear_from_4d", "output", "output[0]"},
                               Change{"linear_from_4d", "input_grads", "gradient of input 0[0]"},
                               Change{"linear_from_4d", "param_grads", "gradient of weight[0]"},
                               Change{"batch_norm_4d", "running_var", "running_var[0]"}}) {
    CAPTURE(change.member);
    JsonNode test_case = case_named(change.case_name);
    CHECK(run_case(test_case).empty());
    // Down to the first number, which is moved a little.
    JsonNode* node = test_case.find(change.member);
    while (true) {
      if (auto* list = std::get_if<JsonNode::Array>(&node->value))
        node = &list->front();
      else if (auto* object = std::get_if<JsonNode::Object>(&node->value))
        node = &object->front().second;
      else
        break;
    }
    node->value = golden_number(*node) + 1e-3;
    const Problems problems = run_case(test_case);
    REQUIRE(!problems.empty());
    CHECK(problems[0].starts_with(change.reported));
  }
}

TEST_CASE("golden: a folder, file or list of cases that is missing is an error") {
  CHECK_THROWS_WITH_AS(read_golden_cases("no/such/folder", "layers.json"),
                       "the folder of golden files no/such/folder does not exist", DataError);
  CHECK_THROWS_WITH_AS(read_golden_cases("tests/support", "layers.json"),
                       "the folder of golden files tests/support has no layers.json", DataError);
  const auto dir = std::filesystem::temp_directory_path() / "layup_golden_without_cases";
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "layers.json") << R"({"cases": []})";
  CHECK_THROWS_AS(read_golden_cases(dir, "layers.json"), DataError);
  std::filesystem::remove_all(dir);
}

TEST_CASE("golden: u(seed, i) has the values of the description") {
  // Computed by hand from the formula, with integers of any size.
  CHECK(golden_u(1000, 0) == 0.7353709936141968);
  CHECK(golden_u(1000, 1) == -0.3300948143005371);
  CHECK(compare_golden("t", std::vector<float>{1, 2}, {1, 2.1}, 0.1).empty());
  CHECK(!compare_golden("t", std::vector<float>{1, 2}, {1, 2.1}, 0.01).empty());
  CHECK(!compare_golden("t", std::vector<float>{1}, {1, 2.1}, 0.1).empty());
  CHECK(!compare_golden("t", std::vector<float>{std::nanf("")}, {1}, 0.1).empty());
}
