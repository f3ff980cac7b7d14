// SPDX-License-Identifier: Apache-2.0
// How a layer brings kernels for the cpu device: it says in which layouts it wants the operands of
// an operation, and makes the kernel for them. Layers that are not in the list run their reference
// kernel on plain operands.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/graph/physical_graph.h"

namespace layup::cpu {

// A layer operation as kernels see it. Operands are in the order of the operation.
struct LayerOperation {
  const Node& node;
  std::span<const TensorSpec> inputs;  // of the layer
  Pass pass = Pass::forward;
  Fusion fusion = Fusion::none;
  bool all_gradients = false;
  int threads = 1;
  KernelOptions options;
  std::vector<Layout> reads;   // as they come (choose), as chosen (make)
  std::vector<Layout> writes;  // as chosen (make)
};

struct Choice {
  std::string kernel;  // empty: the reference kernel, everything plain
  std::vector<Layout> reads;
  std::vector<Layout> writes;
  std::int64_t workspace_bytes = 0;
};

struct CpuLayer {
  const char* type;
  Choice (*choose)(const LayerOperation& op);
  Kernel (*make)(const LayerOperation& op);
  // Where parameter `i` lies from step to step; may depend on the layer, not on the batch. Null:
  // plain.
  Layout (*parameter_layout)(const Node& node, std::span<const TensorSpec> inputs, int i) = nullptr;
};

// How images in blocks of channels lie in memory.
inline Element image_element(const KernelOptions& options) {
  return options.precision == Precision::bf16 ? Element::bf16 : Element::own;
}

// Null if the layer has no kernels for this device.
const CpuLayer* find_cpu_layer(const std::string& type);

// Channels per block of an activation: 16 with AVX-512, else 8.
std::int64_t channel_block();

// Whether the processor has instructions for bf16. It has blocks of 16 channels then.
bool has_bf16();

// nChw16c of a tensor [N, C, H, W].
inline Layout blocked(const Shape& shape, Element element = Element::own) {
  Layout layout = blocked_channels(shape, channel_block());
  layout.element = element;
  return layout;
}

}  // namespace layup::cpu
