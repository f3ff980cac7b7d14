// SPDX-License-Identifier: Apache-2.0
// add on the cpu device, with the relu that may follow: element by element in whatever layout the
// operands come, padding included (zeros stay zeros). Contracts: layers/add.cpp, layers/relu.cpp.
#include "layers/cpu/add.h"

#include "engine/error.h"
#include "engine/parallel.h"
#include "layers/cpu/cpu_layer.h"
#include "layers/cpu/vector.h"

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

template <bool kRelu, typename T>
void add_range(const KernelArgs& args, int num_inputs, std::int64_t begin, std::int64_t end) {
  constexpr int kLanes = 16;
  using V = Vectors<kLanes>;
  const T* a = args.read<T>(0);
  const T* b = args.read<T>(1);
  T* y = args.write<T>(0);
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    auto sum = V::load(a + i) + V::load(b + i);
    for (int k = 2; k < num_inputs; ++k) sum += V::load(args.read<T>(k) + i);
    V::store(y + i, kRelu ? V::relu(sum) : sum);
  }
  for (; i < end; ++i) {
    float sum = load_one(a + i) + load_one(b + i);
    for (int k = 2; k < num_inputs; ++k) sum += load_one(args.read<T>(k) + i);
    store_one(y + i, kRelu && sum <= 0 ? 0 : sum);
  }
}

template <bool kRelu, typename T>
Kernel kernel_for(std::int64_t count, int num_inputs, int threads) {
  return [=](const KernelArgs& args) {
    parallel_for(threads, count, [&](std::int64_t begin, std::int64_t end) {
      add_range<kRelu, T>(args, num_inputs, begin, end);
    });
  };
}

Kernel make_add(const LayerOperation& op) {
  LAYUP_ASSERT(op.pass != Pass::backward_params && op.pass != Pass::backward_data);
  return add_kernel(op.writes[0].element, count_of(op), static_cast<int>(op.reads.size()),
                    op.fusion == Fusion::relu, op.threads);
}

}  // namespace

Kernel add_kernel(Element element, std::int64_t count, int num_inputs, bool relu, int threads) {
  if (element == Element::bf16)
    return relu ? kernel_for<true, Bf16>(count, num_inputs, threads)
                : kernel_for<false, Bf16>(count, num_inputs, threads);
  return relu ? kernel_for<true, float>(count, num_inputs, threads)
              : kernel_for<false, float>(count, num_inputs, threads);
}

CpuLayer add_cpu() { return {"add", choose_add, make_add}; }

}  // namespace layup::cpu
