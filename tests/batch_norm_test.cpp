// SPDX-License-Identifier: Apache-2.0
// What the layer suite cannot see of batch normalisation: running statistics, replay, refusals.
#include <doctest/doctest.h>

#include <cmath>

#include "engine/error.h"
#include "layers/registry.h"
#include "tests/support/device_layer.h"
#include "tests/support/layer_harness.h"

namespace layup {
namespace {

constexpr Slot kX{Role::x, 0};
constexpr Slot kY{Role::y, 0};
constexpr Slot kRunningMean{Role::buffer, 0};
constexpr Slot kRunningVar{Role::buffer, 1};

std::unique_ptr<Layer> batch_norm(const Json& params) {
  return read_layer(*find_layer_type(builtin_layers(), "batch_norm"), params);
}

std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }

}  // namespace

TEST_CASE("batch_norm normalises by the biased variance and keeps the unbiased one") {
  // Published for PyTorch: batch {1,2,3,4} gives running_mean 0.25, running_var 1.0667.
  const auto layer = batch_norm(Json::object());
  LayerHarness run(*layer, {{{4, 1}, DType::f32}});
  run.fill(1);
  std::ranges::copy(std::vector<float>{1, 2, 3, 4}, run.values(kX).begin());
  run.values({Role::parameter, 0})[0] = 1;
  run.values({Role::parameter, 1})[0] = 0;
  run.run(Pass::forward);
  CHECK(run.values(kRunningMean)[0] == 0.25F);
  CHECK(std::abs(run.values(kRunningVar)[0] - (0.9 + 0.1 * 5 / 3)) < 1e-6);
  CHECK(std::abs(run.values(kY)[3] - 1.5 / std::sqrt(1.25 + 1e-5)) < 1e-6);
}

TEST_CASE("batch_norm keeps its digits when the mean is large") {
  const auto layer = batch_norm(Json::object());
  LayerHarness run(*layer, {{{8, 1, 16, 16}, DType::f32}});
  run.fill(1);
  const auto x = run.values(kX);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 10000 + static_cast<float>(i % 2);
  run.run(Pass::forward);
  CHECK(run.values({Role::saved, 0})[0] == 10000.5F);
  CHECK(std::abs(run.values({Role::saved, 1})[0] - 1 / std::sqrt(0.25 + 1e-5)) < 1e-6);
}

TEST_CASE("batch_norm replays the forward pass bit for bit and updates nothing") {
  for (const Shape& shape : {Shape{6, 5}, Shape{3, 4, 7, 5}}) {
    const auto layer = batch_norm({{"momentum", 0.3}});
    LayerHarness run(*layer, {{shape, DType::f32}});
    run.fill(3);
    run.run(Pass::forward);
    const std::vector<float> y = copy(run.values(kY));
    const std::vector<float> mean = copy(run.values(kRunningMean));
    const std::vector<float> variance = copy(run.values(kRunningVar));
    std::ranges::fill(run.values(kY), 0.0F);
    run.run(Pass::replay);
    CHECK(copy(run.values(kY)) == y);
    CHECK(copy(run.values(kRunningMean)) == mean);
    CHECK(copy(run.values(kRunningVar)) == variance);
    run.run(Pass::evaluate);
    CHECK(copy(run.values(kY)) != y);  // by the running statistics
    CHECK(copy(run.values(kRunningMean)) == mean);
    run.run(Pass::forward);  // the one pass that does update them
    CHECK(copy(run.values(kRunningMean)) != mean);
  }
}

TEST_CASE("batch_norm evaluates with the running statistics") {
  const auto layer = batch_norm({{"eps", 0.25}});
  LayerHarness run(*layer, {{{2, 1}, DType::f32}});
  run.fill(1);
  std::ranges::copy(std::vector<float>{3, 7}, run.values(kX).begin());
  run.values(kRunningMean)[0] = 5;
  run.values(kRunningVar)[0] = 3.75F;
  run.values({Role::parameter, 0})[0] = 3;
  run.values({Role::parameter, 1})[0] = 10;
  run.run(Pass::evaluate);
  CHECK(copy(run.values(kY)) == std::vector<float>{7, 13});
}

TEST_CASE("batch_norm gives the same bits for any number of threads") {
  const auto layer = batch_norm(Json::object());
  const auto check = [](const Layer& tested, const Shape& shape) {
    LayerHarness one(tested, {{shape, DType::f32}}, 1);
    one.fill(4);
    one.run_step();
    for (const int threads : {2, 3, 8}) {
      LayerHarness many(tested, {{shape, DType::f32}}, threads);
      many.fill(4);
      many.run_step();
      INFO(to_string(shape) << ", threads " << threads);
      for (const Slot slot : one.slots())
        CHECK(std::ranges::equal(one.bytes(slot), many.bytes(slot)));
    }
  };
  check(*layer, {3, 5, 9, 7});
  if (!has_device(DeviceKind::cpu)) return;
  const DeviceLayer device(*layer, "batch_norm", DeviceKind::cpu);
  // One sample for many threads; broken blocks; blocks one at a time.
  for (const Shape& shape : {Shape{1, 21, 5, 4}, Shape{3, 40, 6, 5}, Shape{2, 48, 70, 70}})
    check(device, shape);
}

TEST_CASE("batch_norm refuses to train on one value per channel, but evaluates it") {
  const auto layer = batch_norm(Json::object());
  for (const Shape& shape : {Shape{1, 3}, Shape{1, 3, 1, 1}}) {
    const std::vector<TensorSpec> inputs = {{shape, DType::f32}};
    const std::string message = layer->infer(inputs).training_error;
    CHECK(message == std::string("batch norm needs more than one value per channel in training; ") +
                         (shape.size() == 4 ? "batch 1 with 1x1 maps has one" : "batch 1 has one"));
    CHECK_THROWS_WITH_AS(layer->make_kernel({Pass::forward, inputs, 0, 1}), message.c_str(),
                         GraphError);
    CHECK(layer->make_kernel({Pass::evaluate, inputs, 0, 1}) != nullptr);
  }
  const std::vector<TensorSpec> two = {{{1, 3, 1, 2}, DType::f32}};
  CHECK(layer->infer(two).training_error == "");
}

TEST_CASE("batch_norm checks its parameters") {
  CHECK_THROWS_AS(batch_norm({{"eps", 0}}), ConfigError);
  CHECK_THROWS_AS(batch_norm({{"momentum", 1.5}}), ConfigError);
  const std::vector<TensorSpec> image = {{{2, 3, 4, 4}, DType::f32}};
  const std::vector<TensorSpec> sequence = {{{2, 3, 4}, DType::f32}};
  CHECK_THROWS_AS(batch_norm(Json::object())->infer(sequence), GraphError);
  const LayerInfo info = batch_norm({{"weight_init", 0}})->infer(image);
  CHECK(info.parameters[0].init == Initializer{Initializer::Kind::constant, 0});
  CHECK(info.buffers[1].initial == 1);
}

}  // namespace layup
