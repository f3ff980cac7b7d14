// SPDX-License-Identifier: Apache-2.0
// Convolution in two dimensions (a cross-correlation, as in every deep-learning library).
//
//   x [N,C,H,W], weight [K,C/groups,R,S], bias [K] -> y [N,K,P,Q]
//   P = floor((H + 2 padding - dilation (R - 1) - 1) / stride) + 1, likewise Q
//   y[n,k,p,q] = bias[k] + sum over c,r,s of weight[k,c,r,s] *
//                x[n, c of k's group, p stride - padding + r dilation, likewise q]
//
// The reference kernels are in im2col_conv.h.
// Backward reads: dy, and x for the filter gradient, weight for the data gradient.
// Errors (infer): GraphError for an input that is not f32 [N,C,H,W], channels that the groups do
// not divide, and an output without pixels.
#include "engine/error.h"
#include "engine/graph/layer.h"
#include "layers/im2col_conv.h"
#include "layers/input_checks.h"

namespace layup {
namespace {

using Index = std::int64_t;

std::string pair_text(Index a, Index b) { return std::to_string(a) + "x" + std::to_string(b); }

class Conv2d final : public Layer {
 public:
  explicit Conv2d(JsonReader& params)
      : out_channels_(params.require_int("out_channels", {1, kMaxSize})),
        kernel_(params.require_ints("kernel", 2, {1, kMaxSize})),
        stride_(params.get_ints("stride", 2, 1, {1, kMaxSize})),
        padding_(params.get_ints("padding", 2, 0, {0, kMaxSize})),
        dilation_(params.get_ints("dilation", 2, 1, {1, kMaxSize})),
        groups_(params.get_int("groups", 1, {1, kMaxSize})),
        has_bias_(params.get_bool("bias", true)),
        init_(read_init_rule(params, "init")),
        bias_init_(read_bias_init_rule(params, has_bias_)) {}

  LayerInfo infer(std::span<const TensorSpec> inputs) const override;
  std::int64_t workspace_bytes(const KernelRequest& request) const override;
  Kernel make_kernel(const KernelRequest& request) const override;
  Json params() const override;

 private:
  static constexpr Index kMaxSize = 1 << 24;  // keeps sums of a few of them far from overflow

  ConvGeometry geometry(std::span<const TensorSpec> inputs) const;

  Index out_channels_;
  std::vector<Index> kernel_;
  std::vector<Index> stride_;
  std::vector<Index> padding_;
  std::vector<Index> dilation_;
  Index groups_;
  bool has_bias_;
  InitRule init_;
  std::optional<InitRule> bias_init_;
};

ConvGeometry Conv2d::geometry(std::span<const TensorSpec> inputs) const {
  const Shape& x = only_image_input("conv2d", inputs).shape;
  ConvGeometry g{.batch = x[0],
                 .channels = x[1],
                 .height = x[2],
                 .width = x[3],
                 .out_channels = out_channels_,
                 .groups = groups_};
  for (int i = 0; i < 2; ++i) {
    g.kernel[i] = kernel_[i];
    g.stride[i] = stride_[i];
    g.padding[i] = padding_[i];
    g.dilation[i] = dilation_[i];
  }
  if (num_elements(x) == 0)
    throw GraphError("conv2d takes an input with values, found " + to_string(x));
  if (g.channels % groups_ != 0)
    throw GraphError("groups " + std::to_string(groups_) + " does not divide the input's " +
                     std::to_string(g.channels) + " channels");
  if (g.out_channels % groups_ != 0)
    throw GraphError("groups " + std::to_string(groups_) + " does not divide out_channels " +
                     std::to_string(g.out_channels));
  const Index extent_h = g.dilation[0] * (g.kernel[0] - 1) + 1;
  const Index extent_w = g.dilation[1] * (g.kernel[1] - 1) + 1;
  const Index room_h = checked_add(g.height, 2 * g.padding[0]) - extent_h;
  const Index room_w = checked_add(g.width, 2 * g.padding[1]) - extent_w;
  if (room_h < 0 || room_w < 0) {
    std::string kernel = pair_text(g.kernel[0], g.kernel[1]);
    if (g.dilation[0] != 1 || g.dilation[1] != 1)
      kernel += " (dilated to " + pair_text(extent_h, extent_w) + ")";
    throw GraphError("kernel " + kernel + " does not fit input " + pair_text(g.height, g.width) +
                     " with padding " + pair_text(g.padding[0], g.padding[1]));
  }
  g.out_height = room_h / g.stride[0] + 1;
  g.out_width = room_w / g.stride[1] + 1;
  return g;
}

LayerInfo Conv2d::infer(std::span<const TensorSpec> inputs) const {
  const ConvGeometry g = geometry(inputs);
  LayerInfo info;
  info.output = {{g.batch, g.out_channels, g.out_height, g.out_width}, DType::f32};
  const Shape weight = {g.out_channels, g.channels / g.groups, g.kernel[0], g.kernel[1]};
  num_bytes(info.output);
  num_bytes({weight, DType::f32});
  info.parameters.push_back({"weight", weight, resolve(init_, weight)});
  if (has_bias_)
    info.parameters.push_back({"bias", {g.out_channels}, resolve_bias(init_, bias_init_, weight)});
  info.cost_kind = CostKind::conv;

  const double flops = 2.0 * static_cast<double>(num_elements(info.output.shape)) *
                       static_cast<double>(weight[1] * weight[2] * weight[3]);
  std::vector<Slot> reads = {{Role::x, 0}, {Role::parameter, 0}};
  if (has_bias_) reads.push_back({Role::parameter, 1});
  const PassSpec compute_y{
      .reads = reads, .writes = {{Role::y, 0}}, .in_place = {}, .flops = flops};
  for (const Pass pass : {Pass::forward, Pass::evaluate, Pass::replay}) info.pass(pass) = compute_y;
  info.pass(Pass::backward_params) = {.reads = {{Role::x, 0}, {Role::dy, 0}},
                                      .writes = {{Role::parameter_gradient, 0}},
                                      .in_place = {},
                                      .flops = flops};
  if (has_bias_) info.pass(Pass::backward_params).writes.push_back({Role::parameter_gradient, 1});
  info.pass(Pass::backward_data) = {.reads = {{Role::dy, 0}, {Role::parameter, 0}},
                                    .writes = {{Role::dx, 0}},
                                    .in_place = {},
                                    .flops = flops};
  return info;
}

std::int64_t Conv2d::workspace_bytes(const KernelRequest& request) const {
  ConvPass pass = ConvPass::forward;
  if (request.pass == Pass::backward_params) pass = ConvPass::filter_gradient;
  if (request.pass == Pass::backward_data) pass = ConvPass::data_gradient;
  return im2col_workspace_bytes(geometry(request.inputs), request.threads, pass);
}

Kernel Conv2d::make_kernel(const KernelRequest& request) const {
  const ConvGeometry g = geometry(request.inputs);
  const int threads = request.threads;
  const bool has_bias = has_bias_;
  switch (request.pass) {
    case Pass::backward_params:
      return [g, threads, has_bias](const KernelArgs& args) {
        im2col_filter_gradient(g, threads, args.read(0), args.read(1), args.write(0),
                               static_cast<float*>(args.workspace));
        if (has_bias) im2col_bias_gradient(g, threads, args.read(1), args.write(1));
      };
    case Pass::backward_data:
      return [g, threads](const KernelArgs& args) {
        im2col_data_gradient(g, threads, args.read(0), args.read(1), args.write(0),
                             static_cast<float*>(args.workspace));
      };
    default:
      return [g, threads, has_bias](const KernelArgs& args) {
        im2col_forward(g, threads, args.read(0), args.read(1), has_bias ? args.read(2) : nullptr,
                       args.write(0), static_cast<float*>(args.workspace));
      };
  }
}

Json Conv2d::params() const {
  Json params = {{"out_channels", out_channels_},
                 {"kernel", kernel_},
                 {"stride", stride_},
                 {"padding", padding_},
                 {"dilation", dilation_},
                 {"groups", groups_},
                 {"bias", has_bias_},
                 {"init", init_.json}};
  if (bias_init_) params["bias_init"] = bias_init_->json;
  return params;
}

LayerExample example(Json params, Shape x) {
  return {std::move(params), {TensorSpec{std::move(x), DType::f32}}};
}

}  // namespace

LayerType conv2d_layer() {
  return {
      .name = "conv2d",
      .read = [](JsonReader& params) -> std::unique_ptr<Layer> {
        return std::make_unique<Conv2d>(params);
      },
      .examples = {
          example({{"out_channels", 4}, {"kernel", 3}, {"padding", 1}}, {2, 3, 7, 6}),
          example({{"out_channels", 3}, {"kernel", 3}}, {1, 2, 5, 6}),
          example({{"out_channels", 2},
                   {"kernel", 2},
                   {"bias_init", {{"type", "constant"}, {"value", 0.1}}}},
                  {1, 1, 3, 3}),
          example({{"out_channels", 6}, {"kernel", 1}, {"bias", false}}, {2, 5, 4, 4}),
          example({{"out_channels", 4}, {"kernel", 1}, {"stride", 2}}, {2, 3, 7, 5}),
          example({{"out_channels", 2}, {"kernel", 1}, {"padding", 1}}, {1, 3, 3, 4}),
          example({{"out_channels", 4}, {"kernel", 3}, {"stride", 2}, {"padding", 1}},
                  {2, 2, 7, 10}),
          example({{"out_channels", 3},
                   {"kernel", {7, 7}},
                   {"stride", 2},
                   {"padding", 3},
                   {"bias", false}},
                  {1, 2, 9, 11}),
          example(
              {{"out_channels", 2}, {"kernel", {3, 5}}, {"stride", {2, 1}}, {"padding", {1, 2}}},
              {2, 3, 8, 10}),
          example({{"out_channels", 3},
                   {"kernel", {1, 4}},
                   {"padding", {0, 1}},
                   {"init", "kaiming_normal"}},
                  {1, 2, 4, 7}),
          example({{"out_channels", 3}, {"kernel", 3}, {"padding", 2}, {"dilation", 2}},
                  {1, 2, 9, 9}),
          example({{"out_channels", 2},
                   {"kernel", {2, 3}},
                   {"stride", 2},
                   {"dilation", 3},
                   {"padding", {1, 3}}},
                  {2, 2, 8, 9}),
          example({{"out_channels", 6}, {"kernel", 3}, {"padding", 1}, {"groups", 2}},
                  {2, 4, 6, 6}),
          example({{"out_channels", 8},
                   {"kernel", 3},
                   {"padding", 1},
                   {"groups", 4},
                   {"stride", 2},
                   {"bias", false}},
                  {1, 4, 8, 8}),
          // A kernel so large that the channels need two blocks.
          example({{"out_channels", 2}, {"kernel", 9}, {"padding", 4}}, {1, 4, 5, 4}),
      }};
}

}  // namespace layup
