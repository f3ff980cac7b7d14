// SPDX-License-Identifier: Apache-2.0
// A fully connected layer.
//
//   x [N, ...], flattened to [N, in];  weight [out, in], bias [out] -> y [N, out]
//   y = x * weight^T + bias,  dx = dy * weight,  dweight = dy^T * x,  dbias = sum of dy over N
//
// Backward reads: dy, and x for the filter gradient, weight for the data gradient.
// Errors (infer): GraphError for an input that is not f32 with two dimensions or more.
#include <algorithm>

#include "engine/error.h"
#include "engine/graph/layer.h"
#include "engine/parallel.h"
#include "layers/gemm.h"
#include "layers/input_checks.h"

namespace layup {
namespace {

using Index = std::int64_t;

struct LinearSizes {
  Index batch = 0;
  Index in = 0;
  Index out = 0;
};

void forward(const LinearSizes& size, int threads,
             const float* x,       // [N,in]
             const float* weight,  // [out,in]
             const float* bias,    // [out] or null
             float* y) {           // [N,out]
  if (bias != nullptr)
    for (Index n = 0; n < size.batch; ++n) std::copy_n(bias, size.out, y + n * size.out);
  gemm(threads, size.batch, size.out, size.in, {x, size.in}, {weight, size.in, true}, y, size.out,
       bias != nullptr);
}

void bias_gradient(const LinearSizes& size, int threads, const float* dy, float* dbias) {
  constexpr Index kBlock = 64;
  parallel_for(threads, (size.out + kBlock - 1) / kBlock, [&](Index begin, Index end) {
    for (Index block = begin; block < end; ++block) {
      const Index first = block * kBlock;
      const Index count = std::min(kBlock, size.out - first);
      double sums[kBlock] = {};
      for (Index n = 0; n < size.batch; ++n)
        for (Index i = 0; i < count; ++i) sums[i] += dy[n * size.out + first + i];
      for (Index i = 0; i < count; ++i) dbias[first + i] = static_cast<float>(sums[i]);
    }
  });
}

class Linear final : public Layer {
 public:
  explicit Linear(JsonReader& params)
      : out_features_(params.require_int("out_features", {1, Index{1} << 40})),
        has_bias_(params.get_bool("bias", true)),
        init_(read_init_rule(params, "init")),
        bias_init_(read_bias_init_rule(params, has_bias_)) {}

  LayerInfo infer(std::span<const TensorSpec> inputs) const override;
  Kernel make_kernel(const KernelRequest& request) const override;
  Json params() const override {
    Json params = {{"out_features", out_features_}, {"bias", has_bias_}, {"init", init_.json}};
    if (bias_init_) params["bias_init"] = bias_init_->json;
    return params;
  }

 private:
  LinearSizes sizes(std::span<const TensorSpec> inputs) const;

  Index out_features_;
  bool has_bias_;
  InitRule init_;
  std::optional<InitRule> bias_init_;
};

LinearSizes Linear::sizes(std::span<const TensorSpec> inputs) const {
  const TensorSpec& x = only_input("linear", inputs);
  if (x.shape.size() < 2)
    throw GraphError("linear takes an input [N, ...], found " + to_string(x.shape));
  return {x.shape[0], num_elements({x.shape.begin() + 1, x.shape.end()}), out_features_};
}

LayerInfo Linear::infer(std::span<const TensorSpec> inputs) const {
  const LinearSizes size = sizes(inputs);
  LayerInfo info;
  info.output = {{size.batch, size.out}, DType::f32};
  const Shape weight = {size.out, size.in};
  num_bytes(info.output);
  num_bytes({weight, DType::f32});
  info.parameters.push_back({"weight", weight, resolve(init_, weight)});
  if (has_bias_)
    info.parameters.push_back({"bias", {size.out}, resolve_bias(init_, bias_init_, weight)});
  info.cost_kind = CostKind::linear;

  const double flops =
      2.0 * static_cast<double>(size.batch) * static_cast<double>(num_elements(weight));
  PassSpec compute_y{.reads = {{Role::x, 0}, {Role::parameter, 0}},
                     .writes = {{Role::y, 0}},
                     .in_place = {},
                     .flops = flops};
  if (has_bias_) compute_y.reads.push_back({Role::parameter, 1});
  for (const Pass pass : {Pass::forward, Pass::evaluate, Pass::replay}) info.pass(pass) = compute_y;
  PassSpec& params = info.pass(Pass::backward_params);
  params = {.reads = {{Role::x, 0}, {Role::dy, 0}},
            .writes = {{Role::parameter_gradient, 0}},
            .in_place = {},
            .flops = flops};
  if (has_bias_) params.writes.push_back({Role::parameter_gradient, 1});
  info.pass(Pass::backward_data) = {.reads = {{Role::dy, 0}, {Role::parameter, 0}},
                                    .writes = {{Role::dx, 0}},
                                    .in_place = {},
                                    .flops = flops};
  return info;
}

Kernel Linear::make_kernel(const KernelRequest& request) const {
  const LinearSizes size = sizes(request.inputs);
  const int threads = request.threads;
  const bool has_bias = has_bias_;
  switch (request.pass) {
    case Pass::backward_params:
      return [size, threads, has_bias](const KernelArgs& args) {
        gemm(threads, size.out, size.in, size.batch, {args.read(1), size.out, true},
             {args.read(0), size.in}, args.write(0), size.in, false);
        if (has_bias) bias_gradient(size, threads, args.read(1), args.write(1));
      };
    case Pass::backward_data:
      return [size, threads](const KernelArgs& args) {
        gemm(threads, size.batch, size.in, size.out, {args.read(0), size.out},
             {args.read(1), size.in}, args.write(0), size.in, false);
      };
    default:
      return [size, threads, has_bias](const KernelArgs& args) {
        forward(size, threads, args.read(0), args.read(1), has_bias ? args.read(2) : nullptr,
                args.write(0));
      };
  }
}

LayerExample example(Json params, Shape x) {
  return {std::move(params), {TensorSpec{std::move(x), DType::f32}}};
}

}  // namespace

LayerType linear_layer() {
  return {.name = "linear",
          .read = [](JsonReader& params) -> std::unique_ptr<Layer> {
            return std::make_unique<Linear>(params);
          },
          .examples = {
              example({{"out_features", 4}}, {3, 5}),
              example({{"out_features", 5}}, {3, 2, 3, 3}),
              example({{"out_features", 4}, {"bias", false}}, {2, 7}),
              example({{"out_features", 3}, {"init", {{"type", "normal"}, {"std", 0.3}}}}, {1, 6}),
              example({{"out_features", 1}}, {4, 3}),
              example({{"out_features", 7}, {"init", "xavier_uniform"}}, {2, 1}),
              example({{"out_features", 2},
                       {"init", {{"type", "normal"}, {"std", 0.3}}},
                       {"bias_init", "default"}},
                      {2, 3}),
          }};
}

}  // namespace layup
