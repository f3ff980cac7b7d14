// SPDX-License-Identifier: Apache-2.0
// add on the cpu device, with the relu that may follow: element by element in whatever layout the
// operands come, padding included (zeros stay zeros). Contracts: layers/add.cpp, layers/relu.cpp.
#include "engine/error.h"
#include "engine/parallel.h"
#include "layers/cpu/cpu_layer.h"

namespace layup::cpu {
namespace {

std::int64_t count_of(const LayerOperation& op) {
  return num_elements(op.writes[0], op.inputs[0].shape);
}

Choice choose_add(const LayerOperation& op) {
  // Two inputs are the usual case; more of them run the reference kernel.
  if (op.reads.size() != 2 && op.fusion == Fusion::none) return {};
  Layout layout;  // that of the first operand which is not plain
  for (const Layout& offered : op.reads)
    if (layout.is_plain()) layout = offered;
  return {"vector", std::vector<Layout>(op.reads.size(), layout), {layout}, 0};
}

template <bool kRelu>
void add_range(const KernelArgs& args, int num_inputs, std::int64_t begin, std::int64_t end) {
  const float* a = args.read(0);
  const float* b = args.read(1);
  float* y = args.write(0);
  for (std::int64_t i = begin; i < end; ++i) {
    float sum = a[i] + b[i];
    for (int k = 2; k < num_inputs; ++k) sum += args.read(k)[i];
    y[i] = kRelu && sum <= 0 ? 0 : sum;
  }
}

template <bool kRelu>
void add_two(const KernelArgs& args, std::int64_t begin, std::int64_t end) {
  const float* a = args.read(0);
  const float* b = args.read(1);
  float* y = args.write(0);
  for (std::int64_t i = begin; i < end; ++i) {
    const float sum = a[i] + b[i];
    y[i] = kRelu && sum <= 0 ? 0 : sum;
  }
}

Kernel make_add(const LayerOperation& op) {
  LAYUP_ASSERT(op.pass != Pass::backward_params && op.pass != Pass::backward_data);
  const std::int64_t count = count_of(op);
  const int threads = op.threads;
  const int num_inputs = static_cast<int>(op.reads.size());
  const bool relu = op.fusion == Fusion::relu;
  return [=](const KernelArgs& args) {
    parallel_for(threads, count, [&](std::int64_t begin, std::int64_t end) {
      if (num_inputs == 2)
        relu ? add_two<true>(args, begin, end) : add_two<false>(args, begin, end);
      else
        relu ? add_range<true>(args, num_inputs, begin, end)
             : add_range<false>(args, num_inputs, begin, end);
    });
  };
}

}  // namespace

CpuLayer add_cpu() { return {"add", choose_add, make_add}; }

}  // namespace layup::cpu
