// SPDX-License-Identifier: Apache-2.0
// Functions of one element whose derivative follows from their value: y = f(x), dx = dy * slope(y).
// What sigmoid and tanh share, kernels included: other devices run them on their own layouts.
#pragma once

#include <cmath>

#include "engine/error.h"
#include "engine/graph/layer.h"
#include "engine/parallel.h"
#include "layers/input_checks.h"

namespace layup {

struct Sigmoid {
  static constexpr const char* kName = "sigmoid";
  static constexpr bool kKeepsZero = false;  // is f(0) = 0, as padding needs?
  static float value(float x) { return 1 / (1 + std::exp(-x)); }
  static float slope(float y) { return y * (1 - y); }
};

struct Tanh {
  static constexpr const char* kName = "tanh";
  static constexpr bool kKeepsZero = true;
  static float value(float x) { return std::tanh(x); }
  static float slope(float y) { return 1 - y * y; }
};

// Forward reads x and writes y; backward reads y and dy and writes dx. `count` elements.
template <typename Function>
Kernel activation_kernel(Pass pass, std::int64_t count, int threads) {
  LAYUP_ASSERT(pass != Pass::backward_params);
  if (pass == Pass::backward_data)
    return [=](const KernelArgs& args) {
      const float* y = args.read(0);
      const float* dy = args.read(1);
      float* dx = args.write(0);
      parallel_for(threads, count, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) dx[i] = dy[i] * Function::slope(y[i]);
      });
    };
  return [=](const KernelArgs& args) {
    const float* x = args.read(0);
    float* y = args.write(0);
    parallel_for(threads, count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) y[i] = Function::value(x[i]);
    });
  };
}

template <typename Function>
class Activation : public Layer {
 public:
  LayerInfo infer(std::span<const TensorSpec> inputs) const override {
    constexpr double kFlops = 10;  // of an exponential and what is round it, about
    LayerInfo info;
    info.output = only_input(Function::kName, inputs);
    const auto count = static_cast<double>(num_elements(info.output.shape));
    for (const Pass pass : {Pass::forward, Pass::evaluate, Pass::replay})
      info.pass(pass) = {{{Role::x}}, {{Role::y}}, {{0, 0}}, kFlops * count};
    info.pass(Pass::backward_data) = {
        {{Role::y}, {Role::dy}}, {{Role::dx}}, {{0, 0}, {1, 0}}, 3 * count};
    return info;
  }

  Kernel make_kernel(const KernelRequest& request) const override {
    return activation_kernel<Function>(request.pass, num_elements(request.inputs[0].shape),
                                       request.threads);
  }

  Json params() const override { return Json::object(); }
};

template <typename Function>
LayerType activation_layer() {
  return {Function::kName,
          [](JsonReader& /*params*/) -> std::unique_ptr<Layer> {
            return std::make_unique<Activation<Function>>();
          },
          {{Json::object(), {{{2, 3, 5, 4}}}},
           {Json::object(), {{{3, 7}}}},
           {Json::object(), {{{1, 1, 1, 1}}}}}};
}

}  // namespace layup
