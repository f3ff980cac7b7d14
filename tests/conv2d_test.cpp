// SPDX-License-Identifier: Apache-2.0
// Convolution against its definition, for sizes that the layer's examples are too small for:
// several tiles per map, several samples per tile, blocks of channels and of filters, partial sums.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "engine/error.h"
#include "layers/registry.h"
#include "tests/support/layer_harness.h"

namespace layup {
namespace {

struct Case {
  const char* what;
  Json params;
  Shape x;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"several tiles per map",
       {{"out_channels", 3}, {"kernel", 3}, {"padding", 1}},
       {2, 20, 40, 41}},
      {"tiles that end inside a row",
       {{"out_channels", 2}, {"kernel", 5}, {"padding", 1}},
       {1, 8, 33, 47}},
      {"strided tiles", {{"out_channels", 2}, {"kernel", 3}, {"stride", 2}}, {1, 24, 61, 53}},
      {"small maps, a last group of samples that is not full",
       {{"out_channels", 5}, {"kernel", 3}, {"padding", 1}},
       {11, 6, 8, 8}},
      {"small maps, 1x1", {{"out_channels", 9}, {"kernel", 1}, {"bias", false}}, {7, 5, 7, 7}},
      {"small maps, stride 2",
       {{"out_channels", 4}, {"kernel", 3}, {"stride", 2}, {"padding", 1}},
       {5, 3, 14, 15}},
      {"1x1 without im2col", {{"out_channels", 6}, {"kernel", 1}}, {2, 300, 19, 20}},
      {"blocks of channels", {{"out_channels", 4}, {"kernel", 3}, {"padding", 1}}, {3, 70, 9, 10}},
      {"blocks of filters", {{"out_channels", 520}, {"kernel", 1}, {"stride", 2}}, {2, 3, 6, 6}},
      {"more filters than channels",
       {{"out_channels", 40}, {"kernel", 3}, {"padding", 1}},
       {2, 4, 15, 15}},
      {"groups",
       {{"out_channels", 12}, {"kernel", 3}, {"padding", 1}, {"groups", 3}},
       {3, 9, 13, 12}},
      {"depthwise",
       {{"out_channels", 7}, {"kernel", 3}, {"padding", 1}, {"groups", 7}},
       {3, 7, 12, 12}},
      {"padding beyond the kernel",
       {{"out_channels", 2}, {"kernel", 2}, {"padding", 4}},
       {2, 3, 5, 6}},
      {"dilation beyond the map",
       {{"out_channels", 2}, {"kernel", 3}, {"padding", 6}, {"dilation", 6}},
       {2, 3, 5, 5}},
      {"a kernel as wide as the map",
       {{"out_channels", 3}, {"kernel", {3, 15}}, {"padding", {1, 7}}},
       {2, 3, 5, 15}},
      {"different strides",
       {{"out_channels", 3}, {"kernel", 3}, {"stride", {1, 2}}, {"padding", {1, 0}}},
       {2, 2, 9, 12}},
  };
  return all;
}

struct Reference {
  std::vector<double> y, dx, dweight, dbias;
};

// The definition, in double, one product at a time.
Reference convolve(LayerHarness& run, const Json& params) {
  const auto pair = [&](const char* key, std::int64_t otherwise) {
    const Json value = params.value(key, Json(otherwise));
    return value.is_array() ? value.get<std::vector<std::int64_t>>()
                            : std::vector<std::int64_t>(2, value.get<std::int64_t>());
  };
  const auto stride = pair("stride", 1);
  const auto padding = pair("padding", 0);
  const auto dilation = pair("dilation", 1);
  const Shape x = run.spec({Role::x, 0}).shape;
  const Shape y = run.spec({Role::y, 0}).shape;
  const Shape w = run.spec({Role::parameter, 0}).shape;
  const auto xs = run.values({Role::x, 0});
  const auto ws = run.values({Role::parameter, 0});
  const auto dys = run.values({Role::dy, 0});
  const bool has_bias = run.has({Role::parameter, 1});
  const std::int64_t group_filters = y[1] / params.value("groups", 1);
  Reference result{std::vector<double>(dys.size()), std::vector<double>(xs.size()),
                   std::vector<double>(ws.size()), std::vector<double>(y[1])};
  for (std::int64_t i = 0; i < num_elements(y); ++i) {
    const std::int64_t q = i % y[3];
    const std::int64_t p = i / y[3] % y[2];
    const std::int64_t k = i / y[3] / y[2] % y[1];
    const std::int64_t n = i / y[3] / y[2] / y[1];
    if (has_bias) result.y[i] = run.values({Role::parameter, 1})[k];
    result.dbias[k] += dys[i];
    for (std::int64_t j = 0; j < w[1] * w[2] * w[3]; ++j) {
      const std::int64_t column = q * stride[1] - padding[1] + j % w[3] * dilation[1];
      const std::int64_t row = p * stride[0] - padding[0] + j / w[3] % w[2] * dilation[0];
      if (row < 0 || row >= x[2] || column < 0 || column >= x[3]) continue;
      const std::int64_t channel = k / group_filters * w[1] + j / w[3] / w[2];
      const std::int64_t at_x = ((n * x[1] + channel) * x[2] + row) * x[3] + column;
      const std::int64_t at_w = k * w[1] * w[2] * w[3] + j;
      result.y[i] += static_cast<double>(xs[at_x]) * ws[at_w];
      result.dx[at_x] += static_cast<double>(dys[i]) * ws[at_w];
      result.dweight[at_w] += static_cast<double>(dys[i]) * xs[at_x];
    }
  }
  return result;
}

// Over the largest magnitude in the tensor.
double relative_error(std::span<const float> values, const std::vector<double>& expected) {
  double largest = 0;
  double error = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    // A NaN must not pass for a small difference.
    error = std::isnan(values[i]) ? INFINITY : std::max(error, std::abs(expected[i] - values[i]));
    if (std::isinf(error)) return error;
  }
  return error / largest;
}

std::unique_ptr<Layer> conv2d(const Json& params) {
  return read_layer(*find_layer_type(builtin_layers(), "conv2d"), params);
}

std::string infer_error(const Json& params, const Shape& x) {
  const std::vector<TensorSpec> inputs = {{x, DType::f32}};
  try {
    conv2d(params)->infer(inputs);
  } catch (const GraphError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("conv2d follows its definition in all passes") {
  // Sums of up to some 1000 products in float32.
  constexpr double kTolerance = 3e-6;
  for (const Case& c : cases()) {
    CAPTURE(c.what);
    const auto layer = conv2d(c.params);
    LayerHarness run(*layer, {{c.x, DType::f32}}, 2);
    run.fill(1);
    const Reference expected = convolve(run, c.params);
    run.run_step();
    CHECK(relative_error(run.values({Role::y, 0}), expected.y) < kTolerance);
    CHECK(relative_error(run.values({Role::dx, 0}), expected.dx) < kTolerance);
    CHECK(relative_error(run.values({Role::parameter_gradient, 0}), expected.dweight) < kTolerance);
    if (run.has({Role::parameter, 1}))
      CHECK(relative_error(run.values({Role::parameter_gradient, 1}), expected.dbias) < kTolerance);
  }
}

TEST_CASE("conv2d gives the same bits for any number of threads") {
  for (const Case& c : cases()) {
    CAPTURE(c.what);
    const auto layer = conv2d(c.params);
    LayerHarness one(*layer, {{c.x, DType::f32}}, 1);
    one.fill(2);
    one.run_step();
    for (const int threads : {2, 3, 8}) {
      LayerHarness several(*layer, {{c.x, DType::f32}}, threads);
      several.fill(2);
      several.run_step();
      for (const Slot slot : one.slots())
        CHECK(std::ranges::equal(one.bytes(slot), several.bytes(slot)));
    }
  }
}

TEST_CASE("conv2d declares a bounded workspace") {
  // VGG-16's second layer at batch 64: one sample's im2col alone would take 110 MiB.
  const auto layer = conv2d({{"out_channels", 64}, {"kernel", 3}, {"padding", 1}});
  const std::vector<TensorSpec> inputs = {{{64, 64, 224, 224}, DType::f32}};
  for (const Pass pass : {Pass::forward, Pass::backward_params, Pass::backward_data}) {
    const std::int64_t one = layer->workspace_bytes({pass, inputs, 0, 1});
    const std::int64_t two = layer->workspace_bytes({pass, inputs, 0, 2});
    CHECK(two - one > 0);
    CHECK(two - one <= 1 << 20);
    CHECK(one <= 5 << 20);
  }
}

TEST_CASE("conv2d refuses what does not fit, and says why") {
  CHECK(infer_error({{"out_channels", 1}, {"kernel", 7}, {"dilation", 2}}, {1, 1, 5, 5}) ==
        "kernel 7x7 (dilated to 13x13) does not fit input 5x5 with padding 0x0");
  CHECK(infer_error({{"out_channels", 1}, {"kernel", {2, 5}}, {"padding", {0, 1}}}, {1, 1, 9, 2}) ==
        "kernel 2x5 does not fit input 9x2 with padding 0x1");
  CHECK(infer_error({{"out_channels", 4}, {"kernel", 1}, {"groups", 2}}, {1, 3, 5, 5}) ==
        "groups 2 does not divide the input's 3 channels");
  CHECK(infer_error({{"out_channels", 3}, {"kernel", 1}, {"groups", 2}}, {1, 4, 5, 5}) ==
        "groups 2 does not divide out_channels 3");
  CHECK(infer_error({{"out_channels", 3}, {"kernel", 1}}, {4, 5}).find("[N, C, H, W]") !=
        std::string::npos);
  CHECK(infer_error({{"out_channels", 1 << 24}, {"kernel", 1 << 20}, {"padding", 1 << 20}},
                    {1, 1 << 20, 1, 1}) != "");
  CHECK_THROWS_AS(conv2d({{"out_channels", 3}, {"kernel", {1, 2, 3}}}), ConfigError);
  CHECK_THROWS_AS(conv2d({{"out_channels", 0}, {"kernel", 1}}), ConfigError);
  CHECK_THROWS_AS(conv2d({{"kernel", 1}}), ConfigError);
}

}  // namespace layup
