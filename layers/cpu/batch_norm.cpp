// SPDX-License-Identifier: Apache-2.0
// batch_norm of images in blocks of channels, with the relu (and the add) that may follow. Contract
// and formulas: layers/batch_norm.cpp; operands of fused operations: layers/cpu/fuse.h.
//
// Images are float32 or bf16; all arithmetic, and all that is known of a channel, is float32 or
// double. Sums are in double, per sample and block of channels, added up in the order of the
// samples: the bits depend neither on threads nor on how the work is cut. The variance comes from
// one pass over deviations from each channel's first value, which keeps the cancellation small.
// Before the headers, whose templates take vectors here: those are inlined, or of one file.
#pragma GCC diagnostic ignored "-Wpsabi"
#include <cmath>

#include "engine/error.h"
#include "engine/parallel.h"
#include "layers/cpu/cpu_layer.h"
#include "layers/cpu/vector.h"

namespace layup::cpu {
namespace {

using Index = std::int64_t;

struct Settings {
  BlockedImage image;
  Fusion fusion;
  int threads;
  double eps;
  double momentum;
  Index count() const { return image.batch * image.pixels; }  // M
};

// One block of channels on its way through the formulas.
template <int kBlock>
struct Affine {
  using V = Vectors<kBlock>;
  typename V::Float mean, scale, bias;

  Affine(const Settings& s, Index block, const float* mean_of, const typename V::Float& inv_std,
         const float* weight, const float* bias_of)
      : mean(load_channels<kBlock>(mean_of, block, s.image.channels)),
        scale(load_channels<kBlock>(weight, block, s.image.channels) * inv_std),
        bias(load_channels<kBlock>(bias_of, block, s.image.channels)) {}
  Affine(const Settings& s, Index block, const float* mean_of, const float* inv_std,
         const float* weight, const float* bias_of)
      : Affine(s, block, mean_of, load_channels<kBlock>(inv_std, block, s.image.channels), weight,
               bias_of) {}

  typename V::Float operator()(const typename V::Float& x) const {
    return (x - mean) * scale + bias;
  }
};

// Calls first(block, n) for all samples of a block, then finish(block), then second(block, n): for
// a few blocks at a time, so that what a thread has read in the first pass (so many bytes per
// element) is still in its cache in the second, most of all what it read last. A thread has the
// same samples in both passes, and mostly those that a convolution gives it.
template <typename First, typename Finish, typename Second>
void run_phases(const Settings& s, Index bytes_per_element, const First& first,
                const Finish& finish, const Second& second) {
  constexpr Index kCacheBytes = 512 << 10;  // half of a usual L2 cache
  const Index blocks = s.image.blocks;
  const Index batch = s.image.batch;
  const Index block_bytes =
      s.count() * s.image.channels / blocks * bytes_per_element / s.threads + 1;
  const Index for_all = (s.threads + batch - 1) / batch;  // blocks that give every thread something
  const Index at_once = std::max(for_all, kCacheBytes / block_bytes);
  as_team(s.threads, [&](const TeamMember& member) {
    for (Index done = 0; done < blocks; done += at_once) {
      const Index count = std::min(at_once, blocks - done);
      const Index begin = member.begin_of(count * batch);
      const Index end = member.end_of(count * batch);
      for (Index i = begin; i < end; ++i) first(done + i % count, i / count);
      member.wait_for_all();
      for (Index i = member.begin_of(count); i < member.end_of(count); ++i) finish(done + i);
      member.wait_for_all();
      for (Index i = end; i-- > begin;) second(done + i % count, i / count);
    }
  });
}

// Two sums per channel, sample and block.
template <int kBlock>
struct Partials {
  typename Vectors<kBlock>::Double first, second;
};

// The sums over a sample's pixels of what `terms(pixel, first, second)` adds: in float over a run
// of pixels, in chains of a few that do not wait for each other, and then in double. A chain is so
// short that its sum is about as exact as the terms are.
template <int kBlock, typename Terms>
Partials<kBlock> sum_pixels(Index pixels, const Terms& terms) {
  using Float = typename Vectors<kBlock>::Float;
  constexpr Index kChains = 4;
  constexpr Index kRun = 8 * kChains;
  Partials<kBlock> sums{};
  const auto add = [&](const Float& first, const Float& second) {
    sums.first += Vectors<kBlock>::widen(first);
    sums.second += Vectors<kBlock>::widen(second);
  };
  Index i = 0;
  for (; i + kRun <= pixels; i += kRun) {
    Float first[kChains]{};
    Float second[kChains]{};
    for (Index k = i; k < i + kRun; k += kChains)
      for (Index chain = 0; chain < kChains; ++chain) terms(k + chain, first[chain], second[chain]);
    add((first[0] + first[1]) + (first[2] + first[3]),
        (second[0] + second[1]) + (second[2] + second[3]));
  }
  while (i < pixels) {
    Float first{};
    Float second{};
    for (const Index end = std::min(i + kRun / kChains, pixels); i < end; ++i)
      terms(i, first, second);
    add(first, second);
  }
  return sums;
}

template <int kBlock>
Partials<kBlock> total_of(const Partials<kBlock>* partials, Index batch) {
  Partials<kBlock> total{};
  for (Index n = 0; n < batch; ++n) {
    total.first += partials[n].first;
    total.second += partials[n].second;
  }
  return total;
}

template <int kBlock, typename T>
void normalize_rows(const Settings& s, const Affine<kBlock>& affine, Index offset, const T* x,
                    const T* other, T* y) {
  using V = Vectors<kBlock>;
  const Index end = offset + s.image.pixels * kBlock;
  if (s.fusion == Fusion::none) {
    for (Index i = offset; i < end; i += kBlock) V::store(y + i, affine(V::load(x + i)));
  } else if (s.fusion == Fusion::relu) {
    for (Index i = offset; i < end; i += kBlock) V::store(y + i, V::relu(affine(V::load(x + i))));
  } else {
    for (Index i = offset; i < end; i += kBlock)
      V::store(y + i, V::relu(affine(V::load(x + i)) + V::load(other + i)));
  }
}

template <int kBlock, typename T>
void forward(const Settings& s, const KernelArgs& args) {
  using V = Vectors<kBlock>;
  const T* x = args.read<T>(0);
  const float* weight = args.read(1);
  const float* bias = args.read(2);
  const T* other = s.fusion == Fusion::add_relu ? args.read<T>(3) : nullptr;
  T* y = args.write<T>(0);
  float* mean = args.write(1);
  float* inv_std = args.write(2);
  float* running[2] = {args.write(3), args.write(4)};
  auto* partials = static_cast<Partials<kBlock>*>(args.workspace);
  const Index batch = s.image.batch;
  const auto count = static_cast<double>(s.count());

  // y may lie over x: what the shift needs is gone when the first sample is normalised, so finish
  // reads it before.
  const auto shift_of = [&](Index block) {
    return V::load(x + s.image.template offset<kBlock>(0, block));
  };
  const auto partial = [&](Index block, Index n) {
    const Index offset = s.image.template offset<kBlock>(n, block);
    const auto shift = shift_of(block);
    partials[block * batch + n] =
        sum_pixels<kBlock>(s.image.pixels, [&](Index i, auto& first, auto& second) {
          const auto deviation = V::load(x + offset + i * kBlock) - shift;
          first += deviation;
          second += deviation * deviation;
        });
  };
  const auto finish = [&](Index block) {
    const Partials<kBlock> total = total_of(partials + block * batch, batch);
    const auto shift = shift_of(block);
    for (int lane = 0; lane < kBlock; ++lane) {
      const Index c = block * kBlock + lane;
      if (c >= s.image.channels) break;
      const double center = total.first[lane] / count;
      // max would turn a NaN into 0
      double squares = total.second[lane] - center * total.first[lane];
      if (squares < 0) squares = 0;
      mean[c] = static_cast<float>(shift[lane] + center);
      inv_std[c] = static_cast<float>(1 / std::sqrt(squares / count + s.eps));
      const double news[2] = {shift[lane] + center, squares / (count - 1)};
      for (int k = 0; k < 2; ++k)
        running[k][c] = static_cast<float>((1 - s.momentum) * running[k][c] + s.momentum * news[k]);
    }
  };
  run_phases(s, sizeof(T), partial, finish, [&](Index block, Index n) {
    const Affine<kBlock> affine(s, block, mean, inv_std, weight, bias);
    normalize_rows(s, affine, s.image.template offset<kBlock>(n, block), x, other, y);
  });
}

// replay (mean and inv_std as saved) and evaluate (mean and variance as they run).
template <int kBlock, typename T>
void apply_saved(const Settings& s, const KernelArgs& args, bool is_variance) {
  const T* x = args.read<T>(0);
  const float* weight = args.read(1);
  const float* bias = args.read(2);
  const T* other = s.fusion == Fusion::add_relu ? args.read<T>(5) : nullptr;
  T* y = args.write<T>(0);
  parallel_for(s.threads, s.image.blocks * s.image.batch, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) {
      const Index block = i % s.image.blocks;
      auto inv_std = load_channels<kBlock>(args.read(4), block, s.image.channels);
      for (int lane = 0; lane < kBlock && is_variance; ++lane)
        inv_std[lane] = static_cast<float>(1 / std::sqrt(inv_std[lane] + s.eps));
      const Affine<kBlock> affine(s, block, args.read(3), inv_std, weight, bias);
      normalize_rows(s, affine, s.image.template offset<kBlock>(i / s.image.blocks, block), x,
                     other, y);
    }
  });
}

// The operands of a backward operation, which makes all gradients or those of parameters alone (see
// layers/cpu/fuse.h).
template <typename T>
struct Backward {
  const T *x, *dy;
  const float *weight, *bias, *mean, *inv_std;  // weight and bias: any numbers where none are read
  T* dx = nullptr;
  float *dweight, *dbias;
  float* carry = nullptr;

  Backward(bool all, bool relu, const KernelArgs& args) : x(args.read<T>(0)), dy(args.read<T>(1)) {
    int next = 2;
    weight = all || relu ? args.read(next++) : nullptr;
    bias = relu ? args.read(next++) : nullptr;
    mean = args.read(next++);
    inv_std = args.read(next);
    if (weight == nullptr) weight = inv_std;
    if (bias == nullptr) bias = mean;
    if (all) dx = args.write<T>(0);
    dweight = args.write(all ? 1 : 0);
    dbias = args.write(all ? 2 : 1);
    if (!all) carry = args.write(2);
  }
};

// dy counts only where the relu let y through.
template <int kBlock, typename T, bool kRelu>
void backward(const Settings& s, const Backward<T>& op, void* workspace) {
  using V = Vectors<kBlock>;
  auto* partials = static_cast<Partials<kBlock>*>(workspace);
  const Index batch = s.image.batch;
  const Index channels = s.image.channels;
  const auto passed = [](const Affine<kBlock>& affine, const typename V::Float& value,
                         const typename V::Float& upstream) {
    if constexpr (kRelu) return affine(value) <= 0.0F ? typename V::Float{} : upstream;
    return upstream;
  };
  const auto sum_up = [&](Index block, Index n) {
    const Index offset = s.image.template offset<kBlock>(n, block);
    const Affine<kBlock> affine(s, block, op.mean, op.inv_std, op.weight, op.bias);
    partials[block * batch + n] =
        sum_pixels<kBlock>(s.image.pixels, [&](Index i, auto& first, auto& second) {
          const auto value = V::load(op.x + offset + i * kBlock);
          const auto slope = passed(affine, value, V::load(op.dy + offset + i * kBlock));
          first += slope;
          second += slope * (value - affine.mean);
        });
  };
  const auto finish = [&](Index block) {
    const Partials<kBlock> total = total_of(partials + block * batch, batch);
    for (int lane = 0; lane < kBlock; ++lane) {
      const Index c = block * kBlock + lane;
      if (c >= channels) break;
      op.dbias[c] = static_cast<float>(total.first[lane]);
      op.dweight[c] = static_cast<float>(total.second[lane] * op.inv_std[c]);
      if (op.carry == nullptr) continue;
      op.carry[c] = op.dbias[c];
      op.carry[channels + c] = op.dweight[c];
    }
  };
  const auto image = [&](Index block, Index n) {
    const Index offset = s.image.template offset<kBlock>(n, block);
    const Affine<kBlock> affine(s, block, op.mean, op.inv_std, op.weight, op.bias);
    const auto count = static_cast<float>(s.count());
    const auto mean_dy = load_channels<kBlock>(op.dbias, block, channels) / count;
    const auto slope = load_channels<kBlock>(op.dweight, block, channels) / count *
                       load_channels<kBlock>(op.inv_std, block, channels);
    for (Index i = offset; i < offset + s.image.pixels * kBlock; i += kBlock) {
      const auto value = V::load(op.x + i);
      const auto upstream = passed(affine, value, V::load(op.dy + i));
      V::store(op.dx + i, (upstream - mean_dy - (value - affine.mean) * slope) * affine.scale);
    }
  };
  run_phases(s, 2 * sizeof(T), sum_up, finish, [&](Index block, Index n) {
    if (op.dx != nullptr) image(block, n);
  });
}

Choice choose(const LayerOperation& op) {
  const Shape& x = op.inputs[0].shape;
  if (x.size() != 4) return {};
  LAYUP_ASSERT(op.pass != Pass::backward_data || op.all_gradients);  // see fuse.h
  const bool is_backward = op.pass == Pass::backward_params || op.pass == Pass::backward_data;
  Choice choice{"vector", std::vector<Layout>(op.reads.size()), {}, 0};
  const Layout image = blocked(x, image_element(op.options));
  choice.reads[0] = image;
  if (is_backward) choice.reads[1] = image;
  if (op.fusion == Fusion::add_relu) choice.reads.back() = image;
  const int num_writes[kNumPasses] = {5, 1, 1, 3, 1};
  choice.writes.resize(static_cast<std::size_t>(num_writes[static_cast<int>(op.pass)]));
  if (op.all_gradients) choice.writes.resize(3);
  if (op.pass != Pass::backward_params) choice.writes[0] = image;
  if (op.pass == Pass::forward || op.pass == Pass::backward_params || op.all_gradients)
    choice.workspace_bytes =
        checked_multiply(x[0], BlockedImage(x, channel_block()).blocks * channel_block() * 2 *
                                   static_cast<std::int64_t>(sizeof(double)));
  return choice;
}

template <int kBlock, typename T>
Kernel make_for(const LayerOperation& op) {
  const Json params = op.node.layer->params();
  const Settings s{BlockedImage(op.inputs[0].shape, kBlock), op.fusion, op.threads,
                   params["eps"].get<double>(), params["momentum"].get<double>()};
  switch (op.pass) {
    case Pass::forward: return [s](const KernelArgs& args) { forward<kBlock, T>(s, args); };
    case Pass::evaluate:
      return [s](const KernelArgs& args) { apply_saved<kBlock, T>(s, args, true); };
    case Pass::replay:
      return [s](const KernelArgs& args) { apply_saved<kBlock, T>(s, args, false); };
    case Pass::backward_params:
    case Pass::backward_data: break;
  }
  const bool all = op.all_gradients;
  const bool relu = op.fusion == Fusion::relu;
  return [s, all, relu](const KernelArgs& args) {
    const Backward<T> operands(all, relu, args);
    relu ? backward<kBlock, T, true>(s, operands, args.workspace)
         : backward<kBlock, T, false>(s, operands, args.workspace);
  };
}

Kernel make(const LayerOperation& op) {
  if (op.pass == Pass::forward && !op.node.info.training_error.empty())
    throw GraphError(op.node.info.training_error);
  if (image_element(op.options) == Element::bf16) return make_for<16, Bf16>(op);
  return channel_block() == 16 ? make_for<16, float>(op) : make_for<8, float>(op);
}

}  // namespace

CpuLayer batch_norm_cpu() { return {"batch_norm", choose, make}; }

}  // namespace layup::cpu
