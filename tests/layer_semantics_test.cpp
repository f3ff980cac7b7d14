// SPDX-License-Identifier: Apache-2.0
// Where frameworks differ, PyTorch's way: one case per trap.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "engine/error.h"
#include "layers/registry.h"
#include "tests/support/layer_harness.h"
#include "tests/support/tolerances.h"

using namespace layup;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::unique_ptr<Layer> make(const char* type, const Json& params = Json::object()) {
  return read_layer(*find_layer_type(builtin_layers(), type), params);
}

Shape output_shape(const char* type, const Json& params, const Shape& input) {
  const std::vector<TensorSpec> inputs = {{input}};
  return make(type, params)->infer(inputs).output.shape;
}

std::vector<float> to_vector(std::span<const float> values) {
  return {values.begin(), values.end()};
}

void set(LayerHarness& harness, Slot slot, const std::vector<float>& values) {
  std::ranges::copy(values, harness.values(slot).begin());
}

// y of the forward pass for one input.
std::vector<float> forward(const char* type, const Json& params, const Shape& shape,
                           const std::vector<float>& x) {
  const auto layer = make(type, params);
  LayerHarness harness(*layer, {{shape}});
  set(harness, {Role::x}, x);
  harness.run(Pass::forward);
  return to_vector(harness.values({Role::y}));
}

std::string error_of(const char* type, const Json& params, const std::vector<TensorSpec>& inputs) {
  try {
    make(type, params)->infer(inputs);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("pooling: ceil_mode drops a last window that starts in the padding") {
  const Json k1s2 = {{"kernel", 1}, {"stride", 2}, {"ceil_mode", true}};
  const Json k2s2p1 = {{"kernel", 2}, {"stride", 2}, {"padding", 1}, {"ceil_mode", true}};
  Json k3s2p1 = {{"kernel", 3}, {"stride", 2}, {"padding", 1}, {"ceil_mode", false}};
  for (const char* type : {"max_pool2d", "avg_pool2d"}) {
    CAPTURE(type);
    CHECK(output_shape(type, k1s2, {1, 1, 6, 7}) == Shape{1, 1, 3, 4});
    CHECK(output_shape(type, k2s2p1, {1, 1, 5, 5}) == Shape{1, 1, 3, 3});
    k3s2p1["ceil_mode"] = false;
    CHECK(output_shape(type, k3s2p1, {2, 3, 112, 112}) == Shape{2, 3, 56, 56});
    k3s2p1["ceil_mode"] = true;
    CHECK(output_shape(type, k3s2p1, {2, 3, 112, 112}) == Shape{2, 3, 57, 57});
  }
}

TEST_CASE("pooling: stride is the kernel by default; what does not fit is refused") {
  CHECK(output_shape("max_pool2d", {{"kernel", {2, 3}}}, {1, 1, 6, 6}) == Shape{1, 1, 3, 2});
  CHECK(error_of("max_pool2d", {{"kernel", 3}, {"padding", 2}}, {{{1, 1, 9, 9}}})
            .find("padding 2 is more than half the kernel 3") != std::string::npos);
  CHECK(error_of("avg_pool2d", {{"kernel", 4}}, {{{1, 1, 3, 9}}}) ==
        "avg_pool2d: the kernel [4, 4] does not fit into the input [1, 1, 3, 9] with padding "
        "[0, 0]");
  CHECK(error_of("max_pool2d", {{"kernel", 2}}, {{{3, 9}}}) ==
        "max_pool2d takes an input [N, C, H, W], found [3, 9]");
}

TEST_CASE("max_pool2d: the first of equal values, and NaN, win") {
  const auto layer = make("max_pool2d", {{"kernel", 2}});
  LayerHarness harness(*layer, {{{1, 1, 2, 4}}});
  set(harness, {Role::x}, {3, 3, 1, 9, 3, 3, kNan, 2});
  set(harness, {Role::dy}, {5, 7});
  harness.run_step();
  CHECK(harness.values({Role::y})[0] == 3);
  CHECK(std::isnan(harness.values({Role::y})[1]));
  CHECK(to_vector(harness.values({Role::dx})) == std::vector<float>{5, 0, 0, 0, 0, 0, 7, 0});
}

TEST_CASE("max_pool2d: padding never wins, and windows may hold minus infinity alone") {
  const Json params = {{"kernel", 2}, {"stride", 2}, {"padding", 1}};
  CHECK(forward("max_pool2d", params, {1, 1, 2, 2}, {-1, -2, -kInfinity, -4}) ==
        std::vector<float>{-1, -2, -kInfinity, -4});
}

TEST_CASE("max_pool2d: positions take a byte up to 255 of them") {
  const std::vector<TensorSpec> inputs = {{{1, 1, 20, 20}}};
  CHECK(make("max_pool2d", {{"kernel", {15, 17}}})->infer(inputs).saved[0].dtype == DType::u8);
  CHECK(make("max_pool2d", {{"kernel", {16, 16}}})->infer(inputs).saved[0].dtype == DType::i32);
}

TEST_CASE("avg_pool2d: padding counts, the overhang of ceil_mode does not") {
  Json params = {{"kernel", 3}, {"stride", 2}, {"padding", 1}, {"ceil_mode", true}};
  const std::vector<float> ones(16, 1.0F);
  // Windows start at -1, 1 and 3; the padded image ends at 5, so that the last one has 2 of 3.
  const float third = 2.0F / 3.0F;
  const float half = 0.5F;
  const std::vector<float> expected = {third * third, third,        third * half, third,      1,
                                       half,          third * half, half,         half * half};
  const std::vector<float> found = forward("avg_pool2d", params, {1, 1, 4, 4}, ones);
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    CHECK(std::abs(found[i] - expected[i]) < kSixDigits);
  params["count_include_pad"] = false;
  CHECK(forward("avg_pool2d", params, {1, 1, 4, 4}, ones) == std::vector<float>(9, 1.0F));
}

TEST_CASE("relu: the derivative at 0 is 0, NaN passes") {
  const auto layer = make("relu");
  LayerHarness harness(*layer, {{{1, 4}}});
  set(harness, {Role::x}, {0, -1, 2, kNan});
  set(harness, {Role::dy}, {1, 1, 3, 1});
  harness.run_step();
  const auto y = harness.values({Role::y});
  CHECK(to_vector(y.first(3)) == std::vector<float>{0, 0, 2});
  CHECK(std::isnan(y[3]));
  CHECK(to_vector(harness.values({Role::dx}).first(3)) == std::vector<float>{0, 0, 3});
}

TEST_CASE("add: other shapes are refused with both of them") {
  CHECK(error_of("add", Json::object(), {{{2, 3, 4, 4}}, {{2, 3, 4, 4}}, {{2, 3, 2, 2}}}) ==
        "add takes inputs of one shape, but input 0 is [2, 3, 4, 4] and input 2 is [2, 3, 2, 2]");
  CHECK(error_of("add", Json::object(), {{{2, 3}}}) == "add takes two or more inputs, found 1");
}

TEST_CASE("concat: channels add up, all else must agree") {
  const auto layer = make("concat");
  const std::vector<TensorSpec> inputs = {{{2, 3, 4, 5}}, {{2, 1, 4, 5}}, {{2, 7, 4, 5}}};
  CHECK(layer->infer(inputs).output.shape == Shape{2, 11, 4, 5});
  CHECK(
      error_of("concat", Json::object(), {{{2, 3, 4, 4}}, {{2, 1, 4, 4}}, {{2, 3, 2, 4}}}) ==
      "concat takes inputs that differ in channels alone, but input 0 is [2, 3, 4, 4] and input 2 "
      "is [2, 3, 2, 4]");
  CHECK(error_of("concat", Json::object(), {{{2, 3}}, {{3, 3}}}).find("input 1 is [3, 3]") !=
        std::string::npos);
  CHECK(error_of("concat", Json::object(), {{{2, 3, 1}}, {{2, 3}}}).find("input 1 is [2, 3]") !=
        std::string::npos);
  CHECK(error_of("concat", Json::object(), {{{2}}, {{2}}}) ==
        "concat takes inputs [N, C, ...], found [2]");
  CHECK(error_of("concat", Json::object(), {{{2, 3}}}) ==
        "concat takes two or more inputs, found 1");
}

TEST_CASE("lrn: the window of an even size lies to the front, alpha is divided by the size") {
  const Json params = {{"size", 2}, {"alpha", 2}, {"beta", 1}, {"k", 1}};
  // s = 1 + 2 / 2 * (square of the channel before, and its own)
  CHECK(forward("lrn", params, {1, 3, 1, 1}, {1, 2, 3}) ==
        std::vector<float>{1.0F / 2, 2.0F / 6, 3.0F / 14});
  CHECK(error_of("lrn", {{"size", 5}}, {{{2, 3}}}) ==
        "lrn takes an input [N, C, H, W], found [2, 3]");
  CHECK(error_of("lrn", {{"size", 0}}, {{{1, 1, 2, 2}}}).find("(at /size)") != std::string::npos);
}

TEST_CASE("sigmoid and tanh: the ends are reached without a NaN, NaN passes") {
  const std::vector<float> x = {-kInfinity, -1000, 1000, kInfinity, kNan};
  for (const char* type : {"sigmoid", "tanh"}) {
    CAPTURE(type);
    const float low = type == std::string("tanh") ? -1 : 0;
    const auto layer = make(type);
    LayerHarness harness(*layer, {{{1, 5}}});
    set(harness, {Role::x}, x);
    set(harness, {Role::dy}, {1, 1, 1, 1, 1});
    harness.run_step();
    CHECK(to_vector(harness.values({Role::y}).first(4)) == std::vector<float>{low, low, 1, 1});
    CHECK(std::isnan(harness.values({Role::y})[4]));
    CHECK(to_vector(harness.values({Role::dx}).first(4)) == std::vector<float>(4, 0.0F));
  }
}

TEST_CASE("flatten and global_avg_pool: shapes") {
  CHECK(output_shape("flatten", Json::object(), {2, 3, 4, 5}) == Shape{2, 60});
  CHECK(output_shape("flatten", Json::object(), {2}) == Shape{2, 1});
  CHECK(output_shape("global_avg_pool", Json::object(), {2, 3, 4, 5}) == Shape{2, 3, 1, 1});
}

TEST_CASE("softmax_cross_entropy: values, label smoothing, number of correct answers") {
  const auto loss_of = [](double smoothing, const std::vector<float>& x, Pass pass) {
    const auto layer = make("softmax_cross_entropy", {{"label_smoothing", smoothing}});
    LayerHarness harness(*layer, {{{1, 3}}});
    set(harness, {Role::x}, x);
    harness.run(pass);  // the label is 0
    return std::pair{harness.values({Role::y})[0], harness.values({Role::metric})[0]};
  };
  for (const Pass pass : {Pass::forward, Pass::evaluate}) {
    CHECK(std::abs(loss_of(0, {2, 1, 0}, pass).first - 0.407606) < kSixDigits);
    CHECK(std::abs(loss_of(0.1, {2, 1, 0}, pass).first - 0.507606) < kSixDigits);
    CHECK(std::abs(loss_of(0, {1e4F, 0, 0}, pass).first) < kSixDigits);
    CHECK(std::abs(loss_of(0, {1e4F, 1e4F, -3e38F}, pass).first - 0.693147) < kSixDigits);
    CHECK(loss_of(0, {2, 1, 0}, pass).second == 1);
    CHECK(loss_of(0, {1, 2, 0}, pass).second == 0);
    CHECK(loss_of(0, {2, 2, 2}, pass).second == 1);  // the first of equal ones
  }
}

TEST_CASE("softmax_cross_entropy: a weight scales the loss and its gradient, not the answers") {
  const auto after_step = [](const Json& params) {
    const auto layer = make("softmax_cross_entropy", params);
    LayerHarness harness(*layer, {{{1, 3}}});
    set(harness, {Role::x}, {2, 1, 0});
    harness.run_step();
    return std::vector<float>{harness.values({Role::y})[0], harness.values({Role::dx})[1],
                              harness.values({Role::metric})[0]};
  };
  const std::vector<float> whole = after_step(Json::object());
  const std::vector<float> quarter = after_step({{"weight", 0.25}});
  CHECK(quarter == std::vector<float>{whole[0] / 4, whole[1] / 4, whole[2]});
  CHECK(error_of("softmax_cross_entropy", {{"weight", 0}}, {{{2, 2}}}).find("(at /weight)") !=
        std::string::npos);
}

TEST_CASE("bias_init: a rule of its own, with the fans of the weight") {
  const std::vector<TensorSpec> inputs = {{{2, 16}}};
  const auto bias_of = [&](const Json& params) {
    return make("linear", params)->infer(inputs).parameters.at(1).init;
  };
  const Json normal = {{"type", "normal"}, {"std", 0.5}};
  CHECK(bias_of({{"out_features", 3}, {"init", normal}}) == Initializer{});
  CHECK(bias_of({{"out_features", 3}, {"init", normal}, {"bias_init", "default"}}) ==
        Initializer{Initializer::Kind::uniform, 0.25});
  CHECK(bias_of({{"out_features", 3}, {"bias_init", {{"type", "constant"}, {"value", 0.1}}}}) ==
        Initializer{Initializer::Kind::constant, 0.1});
  CHECK(error_of("conv2d",
                 {{"out_channels", 3}, {"kernel", 1}, {"bias", false}, {"bias_init", "default"}},
                 {{{1, 1, 2, 2}}})
            .find("\"bias\" is false (at /bias_init)") != std::string::npos);
}

TEST_CASE("softmax_cross_entropy: large logits keep their gradients") {
  const auto layer = make("softmax_cross_entropy");
  LayerHarness harness(*layer, {{{1, 2}}});
  set(harness, {Role::x}, {30000, 30001});
  harness.run_step();
  const double p = 1 / (1 + std::exp(-1.0));
  CHECK(std::abs(harness.values({Role::dx})[1] - p) < kSixDigits);
}

TEST_CASE("softmax_cross_entropy: a loss that is not finite is reported once, in training only") {
  const auto layer = make("softmax_cross_entropy");
  LayerHarness harness(*layer, {{{2, 2}}});
  harness.run(Pass::forward);
  CHECK(harness.state().failed == 0);
  set(harness, {Role::x}, {0, kNan, 0, 0});
  harness.run(Pass::evaluate);
  CHECK(harness.state().failed == 0);
  harness.run(Pass::forward);
  CHECK(harness.state().failed == kFailedLoss);
  harness.state().failed = 9;  // what failed first stays
  harness.run(Pass::forward);
  CHECK(harness.state().failed == 9);
}

TEST_CASE("softmax_cross_entropy: a label that is no class gives NaN, not a stray read") {
  const auto layer = make("softmax_cross_entropy");
  for (const std::int32_t label : {-1, 2, std::numeric_limits<std::int32_t>::min()}) {
    LayerHarness harness(*layer, {{{2, 2}}});
    harness.values<std::int32_t>({Role::labels})[1] = label;
    harness.run_step();
    CHECK(std::isnan(harness.values({Role::y})[0]));
    CHECK(harness.state().failed == kFailedLoss);
    CHECK(std::isfinite(harness.values({Role::dx})[0]));
    CHECK(std::isnan(harness.values({Role::dx})[2]));
  }
}

TEST_CASE("dropout: keeps about 1 - p, scaled; evaluation copies") {
  const auto layer = make("dropout", {{"p", 0.3}});
  LayerHarness harness(*layer, {{{10, 1001}}});
  std::ranges::fill(harness.values({Role::x}), 1.0F);
  std::ranges::fill(harness.values({Role::dy}), 1.0F);
  harness.run_step();
  double kept = 0;
  for (const float y : harness.values({Role::y})) {
    CHECK((y == 0 || std::abs(y - 1 / 0.7) < kSixDigits));
    kept += y != 0;
  }
  // Five standard deviations of a binomial distribution.
  CHECK(std::abs(kept - 7007) < 5 * std::sqrt(10010 * 0.3 * 0.7));
  CHECK(to_vector(harness.values({Role::y})) == to_vector(harness.values({Role::dx})));
  harness.run(Pass::evaluate);
  CHECK(to_vector(harness.values({Role::y})) == std::vector<float>(10010, 1.0F));
}

TEST_CASE("dropout: the mask is a function of seed, step, layer, sample and element alone") {
  const auto layer = make("dropout");
  const auto mask = [&](std::int64_t samples, const StepState& state) {
    LayerHarness harness(*layer, {{{samples, 37}}});
    std::ranges::fill(harness.values({Role::x}), 1.0F);
    harness.state() = state;
    harness.run(Pass::forward);
    return to_vector(harness.values({Role::y}));
  };
  const StepState state{.step = 3, .seed = 1};
  const std::vector<float> whole = mask(6, state);
  // Two micro-batches, of 4 and 2 samples.
  std::vector<float> parts = mask(4, state);
  StepState second = state;
  second.first_sample = 4;
  std::ranges::copy(mask(2, second), std::back_inserter(parts));
  CHECK(parts == whole);

  StepState other = state;
  other.step = 4;
  CHECK(mask(6, other) != whole);
  other = state;
  other.seed = 2;
  CHECK(mask(6, other) != whole);

  const std::vector<TensorSpec> inputs = {{{6, 37}}};
  const std::vector<float> x(whole.size(), 1.0F);
  std::vector<float> y(whole.size());
  StepState copy = state;
  const void* reads[] = {x.data()};
  void* writes[] = {y.data()};
  const KernelRequest request{Pass::forward, inputs, 12345, 1};
  layer->make_kernel(request)({reads, writes, nullptr, &copy});
  CHECK(y != whole);
}

TEST_CASE("parameters out of range are refused where they stand") {
  CHECK(error_of("dropout", {{"p", 1.5}}, {{{2, 2}}}).find("(at /p)") != std::string::npos);
  CHECK(error_of("softmax_cross_entropy", {{"label_smoothing", 1.5}}, {{{2, 2}}})
            .find("(at /label_smoothing)") != std::string::npos);
  CHECK(error_of("max_pool2d", Json::object(), {{{1, 1, 2, 2}}}).find("\"kernel\" is missing") !=
        std::string::npos);
  CHECK(error_of("max_pool2d", {{"kernel", 0}}, {{{1, 1, 2, 2}}}).find("(at /kernel)") !=
        std::string::npos);
  CHECK(error_of("relu", Json::object(), {{{1}}, {{1}}}) == "relu takes one input, found 2");
}
