// SPDX-License-Identifier: Apache-2.0
// linear on oneDNN's inner product. x and y are plain; weights lie in the blocks that its kernels
// for small matrices want in all three passes (its other kernels take memory from the heap in every
// call, so they only serve where there is nothing else). Contract: layers/linear.cpp.
#include <optional>

#include "layers/cpu/cpu_layer.h"
#include "layers/cpu/onednn.h"

namespace layup::cpu {
namespace {

using dnnl::memory;
using From = Argument::From;
using Forward = dnnl::inner_product_forward;
using BackwardData = dnnl::inner_product_backward_data;
using BackwardWeights = dnnl::inner_product_backward_weights;

struct LinearDescs {
  memory::desc x, weight, bias, y;
  bool has_bias = false;
};

LinearDescs descs_of(const Node& node, std::int64_t batch, const memory::desc& weight_desc) {
  const Shape& weight = node.info.parameters[0].shape;
  LinearDescs descs;
  descs.x = to_desc({}, {batch, weight[1]});
  descs.weight = weight_desc;
  descs.y = to_desc({}, {batch, weight[0]});
  descs.has_bias = node.info.parameters.size() > 1;
  if (descs.has_bias) descs.bias = to_desc({}, {weight[0]});
  return descs;
}

Forward::primitive_desc forward_desc(const LinearDescs& d) {
  const auto kind = dnnl::prop_kind::forward_training;
  const Forward::desc desc = d.has_bias ? Forward::desc(kind, d.x, d.weight, d.bias, d.y)
                                        : Forward::desc(kind, d.x, d.weight, d.y);
  return {desc, user_scratchpad(), onednn_engine()};
}

BackwardData::primitive_desc data_desc(const LinearDescs& d) {
  return {{d.x, d.weight, d.y}, user_scratchpad(), onednn_engine(), forward_desc(d)};
}

BackwardWeights::primitive_desc weights_desc(const LinearDescs& d) {
  const BackwardWeights::desc desc = d.has_bias ? BackwardWeights::desc(d.x, d.weight, d.bias, d.y)
                                                : BackwardWeights::desc(d.x, d.weight, d.y);
  return {desc, user_scratchpad(), onednn_engine(), forward_desc(d)};
}

template <typename Descriptor>
bool is_block_kernel(const Descriptor& descriptor) {
  return std::string(descriptor.impl_info_str()).find("brgemm") != std::string::npos;
}

// Whatever the batch: as a forward pass of 64 samples wants it.
Layout weight_layout(const Node& node) {
  constexpr std::int64_t kBatch = 64;
  const Shape& weight = node.info.parameters[0].shape;
  const auto descriptor = forward_desc(descs_of(node, kBatch, any_desc(weight)));
  return is_block_kernel(descriptor) ? to_layout(descriptor.weights_desc()) : Layout{};
}

// The resident layout, else what the library chooses. None where it has no kernel in blocks: others
// allocate while they run.
template <typename Make>
auto find_desc(const LayerOperation& op, const Make& make) {
  const Shape& weight = op.node.info.parameters[0].shape;
  const std::int64_t batch = op.inputs[0].shape[0];
  const auto attempt = [&](const memory::desc& weight_desc) {
    std::optional<decltype(make(LinearDescs{}))> made;
    try {
      made = make(descs_of(op.node, batch, weight_desc));
      if (!is_block_kernel(*made)) made.reset();
    } catch (const dnnl::error&) {
    }
    return made;
  };
  auto found = attempt(to_desc(weight_layout(op.node), weight));
  return found ? found : attempt(any_desc(weight));
}

Choice choose(const LayerOperation& op) {
  const ThreadScope scope(op.threads);
  Choice choice;
  choice.reads.resize(op.reads.size());
  choice.writes.resize(1);
  const auto fill = [&](const auto& descriptor) -> const auto& {
    choice.kernel = kernel_name(descriptor);
    choice.workspace_bytes = scratchpad_bytes(descriptor);
    return descriptor;
  };
  if (op.pass == Pass::backward_params) {
    const auto found = find_desc(op, weights_desc);
    if (!found) return {};
    const auto& descriptor = fill(*found);
    choice.writes[0] = to_layout(descriptor.diff_weights_desc());
    choice.writes.resize(op.node.info.parameters.size());
  } else if (op.pass == Pass::backward_data) {
    const auto found = find_desc(op, data_desc);
    if (!found) return {};
    const auto& descriptor = fill(*found);
    choice.reads[1] = to_layout(descriptor.weights_desc());
  } else {
    const auto found = find_desc(op, forward_desc);
    if (!found) return {};
    const auto& descriptor = fill(*found);
    choice.reads[1] = to_layout(descriptor.weights_desc());
  }
  return choice;
}

Kernel make(const LayerOperation& op) {
  const ThreadScope scope(op.threads);
  const bool has_bias = op.node.info.parameters.size() > 1;
  std::vector<Argument> arguments;
  const auto finish = [&](const auto& primitive, const auto& descriptor) {
    arguments.push_back({DNNL_ARG_SCRATCHPAD, From::workspace, 0, descriptor.scratchpad_desc()});
    return primitive_kernel(primitive, arguments, op.threads);
  };
  if (op.pass == Pass::backward_params) {
    const auto d = find_desc(op, weights_desc).value();
    arguments = {{DNNL_ARG_SRC, From::read, 0, d.src_desc()},
                 {DNNL_ARG_DIFF_DST, From::read, 1, d.diff_dst_desc()},
                 {DNNL_ARG_DIFF_WEIGHTS, From::write, 0, d.diff_weights_desc()}};
    if (has_bias) arguments.push_back({DNNL_ARG_DIFF_BIAS, From::write, 1, d.diff_bias_desc()});
    return finish(BackwardWeights(d), d);
  }
  if (op.pass == Pass::backward_data) {
    const auto d = find_desc(op, data_desc).value();
    arguments = {{DNNL_ARG_DIFF_DST, From::read, 0, d.diff_dst_desc()},
                 {DNNL_ARG_WEIGHTS, From::read, 1, d.weights_desc()},
                 {DNNL_ARG_DIFF_SRC, From::write, 0, d.diff_src_desc()}};
    return finish(BackwardData(d), d);
  }
  const auto d = find_desc(op, forward_desc).value();
  arguments = {{DNNL_ARG_SRC, From::read, 0, d.src_desc()},
               {DNNL_ARG_WEIGHTS, From::read, 1, d.weights_desc()},
               {DNNL_ARG_DST, From::write, 0, d.dst_desc()}};
  if (has_bias) arguments.push_back({DNNL_ARG_BIAS, From::read, 2, d.bias_desc()});
  return finish(Forward(d), d);
}

Layout parameter_layout(const Node& node, std::span<const TensorSpec> /*inputs*/, int i) {
  return i == 0 ? weight_layout(node) : Layout{};
}

}  // namespace

CpuLayer linear_cpu() { return {"linear", choose, make, parameter_layout}; }

}  // namespace layup::cpu
