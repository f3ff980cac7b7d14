// SPDX-License-Identifier: Apache-2.0
// Walks all layers and their examples. A layer that is added to layers/meson.build is tested here
// without another line.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/bf16.h"
#include "layers/registry.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/device_layer.h"
#include "tests/support/layer_checks.h"
#include "tests/support/layer_harness.h"
#include "tests/support/tolerances.h"

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

// All that a training step and an evaluation leave behind, against the reference.
Problems compare_with_reference(const Layer& reference, const Layer& other,
                                const std::vector<TensorSpec>& inputs, Precision precision) {
  Problems problems;
  const auto after_step = [&](const Layer& layer) {
    LayerHarness harness(layer, inputs, 2);
    harness.fill(5);
    if (precision == Precision::bf16)
      for (const Slot slot : harness.slots())
        if (slot.role == Role::x || slot.role == Role::dy || slot.role == Role::parameter)
          for (float& value : harness.values(slot)) value = to_float(to_bf16(value));
    harness.run_step();
    return harness;
  };
  LayerHarness expected = after_step(reference);
  LayerHarness found = after_step(other);
  const double tolerance = precision == Precision::bf16 ? kBf16Layer : kDeviceLayer;
  const auto compare = [&](const std::string& when) {
    for (const Slot slot : expected.slots()) {
      if (expected.spec(slot).dtype != DType::f32) {
        if (!std::ranges::equal(expected.bytes(slot), found.bytes(slot)))
          problems.push_back(to_string(slot) + when + " differs");
        continue;
      }
      double largest = 0;
      double difference = 0;
      for (std::size_t i = 0; i < expected.values(slot).size(); ++i) {
        const double value = expected.values(slot)[i];
        largest = std::max(largest, std::abs(value));
        difference = std::max(difference, std::abs(value - found.values(slot)[i]));
      }
      if (!(difference <= tolerance * largest))
        problems.push_back(to_string(slot) + when + " is off by " + std::to_string(difference) +
                           " of " + std::to_string(largest));
    }
  };
  compare("");
  for (const Pass pass : {Pass::evaluate, Pass::replay}) {
    if (!expected.info().pass(pass).exists()) continue;
    expected.run(pass);
    found.run(pass);
    compare(std::string(" after ") + to_string(pass));
  }
  return problems;
}

Problems device_checks(const LayerType& type, const LayerExample& example, DeviceKind device,
                       Operands operands, Precision precision) {
  Problems all;
  const auto gather = [&](const char* check, const Problems& problems) {
    for (const std::string& problem : problems) all.push_back(std::string(check) + ": " + problem);
  };
  const auto reference = read_layer(type, example.params);
  const DeviceLayer layer(*reference, type.name, device, operands, {.precision = precision});
  const LayerSubject subject{&layer, example.inputs};
  gather("reference", compare_with_reference(*reference, layer, example.inputs, precision));
  gather("in place", check_in_place(subject));
  gather("reads", check_reads(subject));
  gather("repeat", check_repeat(subject));
  return all;
}

// A mask of bits in the order of blocks holds more than the plain one that the harness keeps
// between passes; cpu_device and onednn_device tests run it in networks.
bool saves_bits(const LayerType& type, const LayerExample& example) {
  const LayerInfo info = read_layer(type, example.params)->infer(example.inputs);
  return std::any_of(info.saved.begin(), info.saved.end(), [](const TensorSpec& saved) {
    return saved.dtype == DType::u8 && saved.shape.size() == 1;
  });
}

// Shapes for which the cpu device has kernels of their own: whole and partial blocks of channels.
struct DeviceExample {
  const char* type;
  LayerExample example;
};
std::vector<DeviceExample> device_examples() {
  const auto image = [](Json params, Shape x, int copies = 1) {
    return LayerExample{std::move(params),
                        std::vector<TensorSpec>(static_cast<std::size_t>(copies), TensorSpec{x})};
  };
  const Json same = {{"out_channels", 64}, {"kernel", 3}, {"padding", 1}};
  return {
      {"conv2d", image({{"out_channels", 32}, {"kernel", 3}, {"padding", 1}}, {2, 16, 6, 5})},
      {"conv2d", image({{"out_channels", 20}, {"kernel", 5}}, {2, 1, 8, 8})},
      {"conv2d", image({{"out_channels", 18}, {"kernel", 3}, {"stride", 2}}, {2, 20, 7, 7})},
      {"conv2d", image({{"out_channels", 32}, {"kernel", 1}, {"stride", 2}}, {2, 16, 6, 6})},
      {"conv2d", image(same, {4, 64, 14, 14})},  // Winograd
      {"conv2d", image({{"out_channels", 128}, {"kernel", 3}, {"padding", 1}}, {4, 64, 14, 13})},
      {"batch_norm", image(Json::object(), {3, 32, 5, 4})},
      {"batch_norm", image(Json::object(), {2, 21, 4, 3})},
      {"max_pool2d", image({{"kernel", 3}, {"stride", 2}, {"padding", 1}}, {2, 20, 7, 6})},
      {"avg_pool2d", image({{"kernel", 2}}, {3, 32, 6, 4})},
      {"avg_pool2d",
       image({{"kernel", 3}, {"stride", 1}, {"padding", 1}, {"count_include_pad", false}},
             {2, 20, 5, 6})},
      {"global_avg_pool", image(Json::object(), {3, 32, 3, 4})},
      {"add", image(Json::object(), {2, 20, 3, 3}, 2)},
      {"concat", image(Json::object(), {2, 32, 3, 4}, 3)},
      {"concat", {Json::object(), {{{3, 16, 3, 3}}, {{3, 48, 3, 3}}}}},
      {"concat", {Json::object(), {{{2, 16, 3, 3}}, {{2, 20, 3, 3}}}}},
      {"lrn", image({{"size", 5}, {"alpha", 0.5}}, {2, 48, 3, 5})},
      {"lrn", image({{"size", 4}, {"alpha", 0.5}, {"beta", 0.6}, {"k", 2}}, {3, 20, 3, 3})},
      {"lrn", image({{"size", 41}, {"alpha", 2}, {"beta", 0.5}}, {2, 24, 2, 3})},
      {"lrn", image({{"size", 1}, {"alpha", 0.5}, {"beta", 1}}, {1, 16, 1, 3})},
      {"sigmoid", image(Json::object(), {2, 20, 3, 3})},
      {"sigmoid", image(Json::object(), {2, 32, 3, 3})},
      {"tanh", image(Json::object(), {2, 20, 3, 3})},
      {"max_pool2d", image({{"kernel", 2}, {"stride", 3}, {"ceil_mode", true}}, {1, 16, 8, 9})},
      {"relu", image(Json::object(), {2, 20, 3, 3})},
      {"linear", image({{"out_features", 70}}, {5, 40})},
  };
}

std::string describe(const LayerType& type, const LayerExample& example) {
  std::string text = type.name + " " + example.params.dump();
  for (const TensorSpec& input : example.inputs) text += " " + to_string(input);
  return text;
}

// Every example of every layer, and those of the device.
void check_all_on_cpu(Precision precision) {
  const auto check = [&](const LayerType& type, const LayerExample& example) {
    for (const Operands operands : {Operands::plain, Operands::blocked}) {
      if (operands == Operands::blocked && saves_bits(type, example)) continue;
      const std::string where = operands == Operands::plain ? "" : " in blocks";
      INFO(describe(type, example) << where);
      for (const std::string& problem :
           device_checks(type, example, DeviceKind::cpu, operands, precision))
        FAIL_CHECK(problem);
    }
  };
  for (const LayerType& type : builtin_layers())
    for (const LayerExample& example : type.examples) check(type, example);
  for (const DeviceExample& item : device_examples())
    check(*find_layer_type(builtin_layers(), item.type), item.example);
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

TEST_CASE("every layer on the cpu device does what the reference does") {
  if (!has_device(DeviceKind::cpu)) {
    MESSAGE("this build has no cpu device");
    return;
  }
  check_all_on_cpu(Precision::float32);
}

TEST_CASE("every layer on the cpu device does in bf16 what the reference does, but for rounding") {
  if (!has_bf16(DeviceKind::cpu)) {
    MESSAGE("this build or this processor has no bf16");
    return;
  }
  check_all_on_cpu(Precision::bf16);
}

TEST_CASE("layer types have different names and are found by them") {
  const LayerTypes& types = builtin_layers();
  CHECK(!types.empty());
  for (const LayerType& type : types) CHECK(find_layer_type(types, type.name) == &type);
  CHECK(find_layer_type(types, "no_such_layer") == nullptr);
}
