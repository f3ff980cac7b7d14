// SPDX-License-Identifier: Apache-2.0
// conv2d on oneDNN, and by Winograd (winograd.h) where that is faster. Activations lie in blocks of
// channels (an image of up to three channels stays plain), weights in the blocks that the forward
// pass reads; the data gradient may want others. In bf16 the resident weights stay what they are,
// and each pass reads a bf16 copy as its kernel wants it; gradients of parameters come out in
// float32. A pass for which there is no fast kernel in bf16 runs in float32. Contract and formulas:
// layers/conv2d.cpp.
#include <algorithm>
#include <optional>

#include "engine/error.h"
#include "layers/cpu/cpu_layer.h"
#include "layers/cpu/onednn.h"
#include "layers/cpu/winograd.h"

namespace layup::cpu {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using From = Argument::From;

struct ConvShape {
  Shape x, weight, y;
  Shape weight_dims;  // as oneDNN wants them: [groups, K/groups, C/groups, R, S] with groups
  memory::dims stride, padding, dilation;
  std::int64_t groups = 1;
  bool has_bias = false;
};

ConvShape shape_of(const Node& node, std::span<const TensorSpec> inputs) {
  const Json params = node.layer->params();
  const auto pair = [&](const char* key) {
    return memory::dims{params[key][0].get<std::int64_t>(), params[key][1].get<std::int64_t>()};
  };
  ConvShape shape;
  shape.x = inputs[0].shape;
  shape.weight = node.info.parameters[0].shape;
  shape.y = node.info.output.shape;
  shape.y[0] = shape.x[0];
  shape.stride = pair("stride");
  shape.padding = pair("padding");
  shape.dilation = pair("dilation");
  for (std::int64_t& d : shape.dilation) --d;  // oneDNN counts the gaps
  shape.groups = params["groups"].get<std::int64_t>();
  shape.has_bias = node.info.parameters.size() > 1;
  shape.weight_dims = shape.weight;
  if (shape.groups > 1) {
    shape.weight_dims[0] /= shape.groups;
    shape.weight_dims.insert(shape.weight_dims.begin(), shape.groups);
  }
  return shape;
}

bool takes_plain_image(const ConvShape& shape) { return shape.groups == 1 && shape.x[1] <= 3; }

// The layouts of the convolutions of AVX-512 and AVX2.
Layout x_layout(const ConvShape& shape, Element element) {
  Layout layout = takes_plain_image(shape) ? Layout{} : blocked(shape.x, element);
  layout.element = element;
  return layout;
}
Layout weight_layout(const ConvShape& shape) {
  const std::int64_t block = channel_block();
  if (shape.groups > 1) return {};
  if (takes_plain_image(shape)) return blocked_layout(shape.weight, {0, 2, 3, 1}, {{0, block}});
  return blocked_layout(shape.weight, {0, 1, 2, 3}, {{1, block}, {0, block}});
}

// Convolutions that Winograd's F(4x4, 3x3) is defined for here, and its tiles.
bool fits_winograd(const LayerOperation& op, const ConvShape& shape) {
  return op.options.winograd && shape.groups == 1 && shape.weight[2] == 3 && shape.weight[3] == 3 &&
         shape.stride == memory::dims{1, 1} && shape.dilation == memory::dims{0, 0} &&
         std::ranges::max(shape.padding) <= 2 && shape.x[1] % channel_block() == 0 &&
         shape.y[1] % channel_block() == 0;
}
std::int64_t winograd_tiles(const ConvShape& shape) {
  return shape.y[0] * ((shape.y[2] + 3) / 4) * ((shape.y[3] + 3) / 4);
}

// Where the library's Winograd is known to be faster than its direct algorithm: from 64 channels
// on in all passes, from 32 on but for the filter gradient, unless there are so few tiles that the
// transforms of the weights weigh more. Measured with AVX-512: 0.35 to 0.85 of the direct time; 1.1
// to 2 below these limits.
bool prefers_library_winograd(const LayerOperation& op, const ConvShape& shape) {
  constexpr std::int64_t kFewestTiles = 128;
  const std::int64_t fewest_channels = op.pass == Pass::backward_params ? 64 : 32;
  return fits_winograd(op, shape) && winograd_tiles(shape) >= kFewestTiles &&
         std::min(shape.x[1], shape.y[1]) >= fewest_channels;
}

// The convolution for winograd_kernel, where that is known to be faster than both, or as fast in
// less memory: from 64 channels on, for the filter gradient from 64 x 128, with few tiles too.
std::optional<WinogradConv> winograd_of(const LayerOperation& op, const ConvShape& shape) {
  constexpr std::int64_t kFewestTiles = 32;
  if (!fits_winograd(op, shape) || image_element(op.options) != Element::own ||
      channel_block() != 16 || winograd_tiles(shape) < kFewestTiles ||
      std::min(shape.x[1], shape.y[1]) < 64 ||
      (op.pass == Pass::backward_params && std::max(shape.x[1], shape.y[1]) < 128))
    return {};
  const WinogradConv conv{op.pass,        shape.x,   shape.y, {shape.padding[0], shape.padding[1]},
                          shape.has_bias, op.threads};
  return plan_winograd(conv).is_worthwhile ? std::optional(conv) : std::nullopt;
}

Choice choose_winograd(const WinogradConv& conv, const ConvShape& shape) {
  const Layout x = blocked(conv.x);
  const Layout y = blocked(conv.y);
  const Layout weight = weight_layout(shape);
  const WinogradPlan plan = plan_winograd(conv);
  Choice choice{plan.kernel, {}, {}, plan.workspace_bytes};
  if (conv.pass == Pass::backward_params) {
    choice.reads = {x, y};
    choice.writes = {weight};
    if (conv.has_bias) choice.writes.emplace_back();
  } else if (conv.pass == Pass::backward_data) {
    choice.reads = {y, weight};
    choice.writes = {x};
  } else {
    choice.reads = {x, weight};
    if (conv.has_bias) choice.reads.emplace_back();
    choice.writes = {y};
  }
  return choice;
}

// Descriptors that are asked for: fixed layouts, or the library's choice.
struct Wanted {
  dnnl::algorithm method;
  Element element;  // of x, y and the weights that are read
  memory::desc x, weight, weight_gradient, bias, y;
};

Wanted wanted(const ConvShape& shape, algorithm chosen, Element element, bool any,
              bool weight_any) {
  Wanted result{chosen,
                element,
                any_desc(shape.x, element),
                any_desc(shape.weight_dims, element),
                any_desc(shape.weight_dims),
                {},
                any_desc(shape.y, element)};
  if (!any) {
    result.x = to_desc(x_layout(shape, element), shape.x);
    result.y = to_desc(blocked(shape.y, element), shape.y);
    result.weight_gradient = to_desc(weight_layout(shape), shape.weight_dims);
    if (!weight_any && element == Element::own) result.weight = result.weight_gradient;
  }
  if (shape.has_bias) result.bias = {{shape.y[1]}, memory::data_type::f32, memory::format_tag::x};
  return result;
}

dnnl::convolution_forward::primitive_desc forward_desc(const ConvShape& s, const Wanted& w) {
  using Forward = dnnl::convolution_forward;
  const auto kind = dnnl::prop_kind::forward_training;
  const Forward::desc desc = s.has_bias ? Forward::desc(kind, w.method, w.x, w.weight, w.bias, w.y,
                                                        s.stride, s.dilation, s.padding, s.padding)
                                        : Forward::desc(kind, w.method, w.x, w.weight, w.y,
                                                        s.stride, s.dilation, s.padding, s.padding);
  return {desc, user_scratchpad(), onednn_engine()};
}

dnnl::convolution_backward_data::primitive_desc data_desc(const ConvShape& s, const Wanted& w) {
  const dnnl::convolution_backward_data::desc desc(w.method, w.x, w.weight, w.y, s.stride,
                                                   s.dilation, s.padding, s.padding);
  return {desc, user_scratchpad(), onednn_engine(), forward_desc(s, w)};
}

dnnl::convolution_backward_weights::primitive_desc weights_desc(const ConvShape& s,
                                                                const Wanted& w) {
  using Backward = dnnl::convolution_backward_weights;
  const Backward::desc desc = s.has_bias
                                  ? Backward::desc(w.method, w.x, w.weight_gradient, w.bias, w.y,
                                                   s.stride, s.dilation, s.padding, s.padding)
                                  : Backward::desc(w.method, w.x, w.weight_gradient, w.y, s.stride,
                                                   s.dilation, s.padding, s.padding);
  return {desc, user_scratchpad(), onednn_engine(), forward_desc(s, w)};
}

template <typename Descriptor>
bool is_fast(const Descriptor& descriptor) {
  const std::string name = descriptor.impl_info_str();
  return name.find("ref") == std::string::npos && name.find("gemm") == std::string::npos;
}

// The first that the library has a fast kernel for: bf16 where it is asked for, Winograd where it
// is preferred, the usual layouts, the library's own choice. None: its kernels by matrix products
// allocate while they run, and its reference kernels are slower than ours.
template <typename Make>
auto find_desc(const LayerOperation& op, const ConvShape& shape, bool weight_any, const Make& make)
    -> decltype(std::optional(make(std::declval<Wanted>()))) {
  const auto direct = algorithm::convolution_direct;
  const auto attempt = [&](algorithm chosen, Element element,
                           bool any) -> decltype(std::optional(make(std::declval<Wanted>()))) {
    try {
      return make(wanted(shape, chosen, element, any, weight_any));
    } catch (const dnnl::error&) {
      return std::nullopt;
    }
  };
  if (image_element(op.options) == Element::bf16)
    for (const bool any : {false, true})
      if (auto found = attempt(direct, Element::bf16, any); found && is_fast(*found)) return found;
  if (prefers_library_winograd(op, shape))
    if (auto found = attempt(algorithm::convolution_winograd, Element::own, false)) return found;
  for (const bool any : {false, true})
    if (auto found = attempt(direct, Element::own, any); found && is_fast(*found)) return found;
  return std::nullopt;
}

auto find_forward(const LayerOperation& op, const ConvShape& shape) {
  return find_desc(op, shape, false, [&](const Wanted& w) { return forward_desc(shape, w); });
}
auto find_weights(const LayerOperation& op, const ConvShape& shape) {
  return find_desc(op, shape, false, [&](const Wanted& w) { return weights_desc(shape, w); });
}
auto find_data(const LayerOperation& op, const ConvShape& shape) {
  return find_desc(op, shape, true, [&](const Wanted& w) {
    Wanted changed =
        w;  // the gradient of a plain image lies in blocks, for which there are kernels
    if (w.x.data.format_kind != dnnl_format_kind_any)
      changed.x = to_desc(blocked(shape.x, w.element), shape.x);
    return data_desc(shape, changed);
  });
}

Choice choose(const LayerOperation& op) {
  const ThreadScope scope(op.threads);
  const ConvShape shape = shape_of(op.node, op.inputs);
  if (const auto conv = winograd_of(op, shape)) return choose_winograd(*conv, shape);
  Choice choice;
  const auto fill = [&](const auto& descriptor) -> const auto& {
    choice.kernel = kernel_name(descriptor);
    choice.workspace_bytes = scratchpad_bytes(descriptor);
    return descriptor;
  };
  if (op.pass == Pass::backward_params) {
    const auto found = find_weights(op, shape);
    if (!found) return {};
    const auto& descriptor = fill(*found);
    choice.reads = {to_layout(descriptor.src_desc()), to_layout(descriptor.diff_dst_desc())};
    choice.writes = {to_layout(descriptor.diff_weights_desc())};
    if (shape.has_bias) choice.writes.emplace_back();
  } else if (op.pass == Pass::backward_data) {
    const auto found = find_data(op, shape);
    if (!found) return {};
    const auto& descriptor = fill(*found);
    choice.reads = {to_layout(descriptor.diff_dst_desc()), to_layout(descriptor.weights_desc())};
    choice.writes = {to_layout(descriptor.diff_src_desc())};
  } else {
    const auto found = find_forward(op, shape);
    if (!found) return {};
    const auto& descriptor = fill(*found);
    choice.reads = {to_layout(descriptor.src_desc()), to_layout(descriptor.weights_desc())};
    if (shape.has_bias) choice.reads.emplace_back();
    choice.writes = {to_layout(descriptor.dst_desc())};
  }
  return choice;
}

Kernel make(const LayerOperation& op) {
  const ThreadScope scope(op.threads);
  const ConvShape shape = shape_of(op.node, op.inputs);
  if (const auto conv = winograd_of(op, shape)) return winograd_kernel(*conv);
  std::vector<Argument> arguments;
  if (op.pass == Pass::backward_params) {
    const auto d = find_weights(op, shape).value();
    arguments = {{DNNL_ARG_SRC, From::read, 0, d.src_desc()},
                 {DNNL_ARG_DIFF_DST, From::read, 1, d.diff_dst_desc()},
                 {DNNL_ARG_DIFF_WEIGHTS, From::write, 0, d.diff_weights_desc()},
                 {DNNL_ARG_SCRATCHPAD, From::workspace, 0, d.scratchpad_desc()}};
    if (shape.has_bias)
      arguments.push_back({DNNL_ARG_DIFF_BIAS, From::write, 1, d.diff_bias_desc()});
    return primitive_kernel(dnnl::convolution_backward_weights(d), arguments, op.threads);
  }
  if (op.pass == Pass::backward_data) {
    const auto d = find_data(op, shape).value();
    arguments = {{DNNL_ARG_DIFF_DST, From::read, 0, d.diff_dst_desc()},
                 {DNNL_ARG_WEIGHTS, From::read, 1, d.weights_desc()},
                 {DNNL_ARG_DIFF_SRC, From::write, 0, d.diff_src_desc()},
                 {DNNL_ARG_SCRATCHPAD, From::workspace, 0, d.scratchpad_desc()}};
    return primitive_kernel(dnnl::convolution_backward_data(d), arguments, op.threads);
  }
  const auto d = find_forward(op, shape).value();
  arguments = {{DNNL_ARG_SRC, From::read, 0, d.src_desc()},
               {DNNL_ARG_WEIGHTS, From::read, 1, d.weights_desc()},
               {DNNL_ARG_DST, From::write, 0, d.dst_desc()},
               {DNNL_ARG_SCRATCHPAD, From::workspace, 0, d.scratchpad_desc()}};
  if (shape.has_bias) arguments.push_back({DNNL_ARG_BIAS, From::read, 2, d.bias_desc()});
  return primitive_kernel(dnnl::convolution_forward(d), arguments, op.threads);
}

Layout parameter_layout(const Node& node, std::span<const TensorSpec> inputs, int i) {
  return i == 0 ? weight_layout(shape_of(node, inputs)) : Layout{};
}

}  // namespace

CpuLayer conv2d_cpu() { return {"conv2d", choose, make, parameter_layout}; }

}  // namespace layup::cpu
