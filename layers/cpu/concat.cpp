// SPDX-License-Identifier: Apache-2.0
// concat of images in blocks of channels: whole blocks are copied, so that nothing is reordered.
// Where an input has a broken block everything is plain. Contract: layers/concat.cpp.
#include <cstring>

#include "engine/parallel.h"
#include "layers/cpu/cpu_layer.h"

namespace layup::cpu {
namespace {

using Index = std::int64_t;

bool has_whole_blocks(std::span<const TensorSpec> inputs) {
  for (const TensorSpec& input : inputs)
    if (input.shape.size() != 4 || input.shape[1] % channel_block() != 0) return false;
  return true;
}

Choice choose(const LayerOperation& op) {
  bool any_blocked = op.pass == Pass::backward_data;  // one reorder of dy at most, none of any dx
  for (const Layout& layout : op.reads) any_blocked = any_blocked || !layout.is_plain();
  if (!any_blocked || !has_whole_blocks(op.inputs)) return {};
  std::vector<Layout> apart;
  for (const TensorSpec& input : op.inputs) apart.push_back(blocked(input.shape));
  const Layout together = blocked(op.node.info.output.shape);
  if (op.pass == Pass::backward_data) return {"block copies", {together}, apart, 0};
  return {"block copies", apart, {together}, 0};
}

// Copies of one block of channels of one image, dealt out among threads.
Kernel make(const LayerOperation& op) {
  struct Source {
    int input;
    Index block, blocks;  // of that input
  };
  std::vector<Source> sources;  // by block of y
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const Index blocks = op.inputs[i].shape[1] / channel_block();
    for (Index block = 0; block < blocks; ++block)
      sources.push_back({static_cast<int>(i), block, blocks});
  }
  const Shape& x = op.inputs[0].shape;
  const Index batch = x[0];
  const Index floats = x[2] * x[3] * channel_block();
  const int threads = op.threads;
  const bool is_backward = op.pass == Pass::backward_data;
  return [=](const KernelArgs& args) {
    const auto blocks = static_cast<Index>(sources.size());
    parallel_for(threads, batch * blocks, [&](Index begin, Index end) {
      for (Index part = begin; part < end; ++part) {
        const Source& source = sources[static_cast<std::size_t>(part % blocks)];
        const Index apart = (part / blocks * source.blocks + source.block) * floats;
        const Index together = part * floats;
        const float* from = is_backward ? args.read(0) + together : args.read(source.input) + apart;
        float* to = is_backward ? args.write(source.input) + apart : args.write(0) + together;
        std::memcpy(to, from, static_cast<std::size_t>(floats) * sizeof(float));
      }
    });
  };
}

}  // namespace

CpuLayer concat_cpu() { return {"concat", choose, make}; }

}  // namespace layup::cpu
