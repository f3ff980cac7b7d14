// SPDX-License-Identifier: Apache-2.0
// sigmoid and tanh on the cpu device: the reference kernels, in whatever layout the operands come.
// Contracts: layers/sigmoid.cpp, layers/tanh.cpp.
#include "layers/activation.h"

#include "layers/cpu/cpu_layer.h"

namespace layup::cpu {
namespace {

template <typename Function>
Choice choose(const LayerOperation& op) {
  Layout layout;  // that of the first operand which is not plain
  for (const Layout& offered : op.reads)
    if (layout.is_plain()) layout = offered;
  layout.element = Element::own;  // its kernel is of float32
  // Padding holds zeros and must keep them.
  const Shape& shape = op.inputs[0].shape;
  const bool is_padded = num_elements(layout, shape) != num_elements(shape);
  if (is_padded && !Function::kKeepsZero) layout = {};
  return {"by element", std::vector<Layout>(op.reads.size(), layout), {layout}, 0};
}

template <typename Function>
Kernel make(const LayerOperation& op) {
  return activation_kernel<Function>(op.pass, num_elements(op.writes[0], op.inputs[0].shape),
                                     op.threads);
}

}  // namespace

CpuLayer sigmoid_cpu() { return {Sigmoid::kName, choose<Sigmoid>, make<Sigmoid>}; }
CpuLayer tanh_cpu() { return {Tanh::kName, choose<Tanh>, make<Tanh>}; }

}  // namespace layup::cpu
