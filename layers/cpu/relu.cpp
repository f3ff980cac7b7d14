// SPDX-License-Identifier: Apache-2.0
// relu on the cpu device: element by element in whatever layout the operands come, padding included
// (zeros stay zeros). The mask holds one bit per element in the order of that layout. Contract:
// layers/relu.cpp.
#include <algorithm>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "engine/error.h"
#include "engine/parallel.h"
#include "layers/cpu/cpu_layer.h"
#include "layers/cpu/vector.h"

namespace layup::cpu {
namespace {

using Index = std::int64_t;

constexpr Index kLanes = 16;  // two bytes of a mask

using V = Vectors<kLanes>;

template <typename T>
unsigned passing(const T* x, Index lanes) {
#ifdef __AVX512F__
  if (lanes == kLanes)
    return _mm512_cmp_ps_mask(std::bit_cast<__m512>(V::load(x)), _mm512_setzero_ps(), _CMP_NLE_UQ);
#endif
  unsigned bits = 0;
  for (Index lane = 0; lane < lanes; ++lane) bits |= (load_one(x + lane) <= 0 ? 0U : 1U) << lane;
  return bits;
}

// to = from where the bit is set, else 0.
template <typename T>
void keep(unsigned bits, const T* from, T* to, Index lanes) {
#ifdef __AVX512F__
  if (lanes == kLanes) {
    const auto kept =
        _mm512_maskz_mov_ps(static_cast<__mmask16>(bits), std::bit_cast<__m512>(V::load(from)));
    V::store(to, std::bit_cast<V::Float>(kept));
    return;
  }
#endif
  for (Index lane = 0; lane < lanes; ++lane) to[lane] = (bits >> lane & 1U) != 0 ? from[lane] : T{};
}

// Calls body(first element, lanes, first byte) for groups of 16 elements; threads share no byte.
template <typename Body>
void for_groups(int threads, Index count, const Body& body) {
  parallel_for(threads, (count + kLanes - 1) / kLanes, [&](Index begin, Index end) {
    for (Index group = begin; group < end; ++group)
      body(group * kLanes, std::min(kLanes, count - group * kLanes), group * 2);
  });
}

// to = 0 where x <= 0, else from. Spelt with vectors: as a plain loop it stays scalar, since the
// load of `from` would depend on a comparison that may raise a flag.
template <typename T>
void select_positive(const T* x, const T* from, T* to, Index begin, Index end) {
  Index i = begin;
  for (; i + kLanes <= end; i += kLanes)
    V::store(to + i, V::load(x + i) <= 0.0F ? V::Float{} : V::load(from + i));
  for (; i < end; ++i) to[i] = load_one(x + i) <= 0 ? T{} : from[i];
}

template <typename T>
Kernel make_masked(const LayerOperation& op, Index count) {
  const int threads = op.threads;
  if (op.pass == Pass::backward_data)
    return [=](const KernelArgs& args) {
      for_groups(threads, count, [&](Index first, Index lanes, Index byte) {
        const auto* mask = args.read<std::uint8_t>(0) + byte;
        const unsigned bits = mask[0] | (lanes > 8 ? static_cast<unsigned>(mask[1]) << 8U : 0U);
        keep(bits, args.read<T>(1) + first, args.write<T>(0) + first, lanes);
      });
    };
  return [=](const KernelArgs& args) {
    for_groups(threads, count, [&](Index first, Index lanes, Index byte) {
      const unsigned bits = passing(args.read<T>(0) + first, lanes);
      keep(bits, args.read<T>(0) + first, args.write<T>(0) + first, lanes);
      auto* mask = args.write<std::uint8_t>(1) + byte;
      mask[0] = static_cast<std::uint8_t>(bits);
      if (lanes > 8) mask[1] = static_cast<std::uint8_t>(bits >> 8U);
    });
  };
}

// As many bytes as the padded elements need.
Layout mask_layout(const LayerOperation& op, const Layout& x) {
  if (x.is_row_major()) return {};
  const Index bytes = num_elements(x, op.inputs[0].shape) / 8;
  return {op.node.info.saved[0].shape, {bytes}, {{0, bytes}}};
}

Choice choose(const LayerOperation& op) {
  const bool masks = !op.node.info.saved.empty();
  Layout layout;
  for (const Layout& offered : op.reads)
    if (layout.is_plain()) layout = offered;
  if (!masks) return {"vector", std::vector<Layout>(op.reads.size(), layout), {layout}, 0};
  if (op.pass == Pass::backward_data) {  // in the order of the mask
    const Layout x = op.reads[0].is_row_major()
                         ? Layout{}
                         : blocked(op.inputs[0].shape, image_element(op.options));
    return {"vector", {op.reads[0], x}, {x}, 0};
  }
  // Only blocks of channels can be told from the mask alone.
  if (!layout.is_plain()) layout = blocked(op.inputs[0].shape, image_element(op.options));
  Choice choice{"vector", {layout}, {layout}, 0};
  if (op.pass == Pass::forward) choice.writes.push_back(mask_layout(op, layout));
  return choice;
}

template <typename T>
Kernel make_for(const LayerOperation& op) {
  const Index count = num_elements(op.writes[0], op.inputs[0].shape);
  const int threads = op.threads;
  const bool is_backward = op.pass == Pass::backward_data;
  if (!op.node.info.saved.empty() && (is_backward || op.pass == Pass::forward))
    return make_masked<T>(op, count);
  if (is_backward)
    return [=](const KernelArgs& args) {
      parallel_for(threads, count, [&](Index begin, Index end) {
        select_positive(args.read<T>(0), args.read<T>(1), args.write<T>(0), begin, end);
      });
    };
  return [=](const KernelArgs& args) {
    parallel_for(threads, count, [&](Index begin, Index end) {
      select_positive(args.read<T>(0), args.read<T>(0), args.write<T>(0), begin, end);
    });
  };
}

Kernel make(const LayerOperation& op) {
  return op.writes[0].element == Element::bf16 ? make_for<Bf16>(op) : make_for<float>(op);
}

}  // namespace

CpuLayer relu_cpu() { return {"relu", choose, make}; }

}  // namespace layup::cpu
