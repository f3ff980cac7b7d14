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

// Blocks are done one after the other, sample by sample, while they are in the cache, if every
// thread gets enough of them; otherwise phase by phase over all samples and blocks.
bool by_block(const Settings& s) {
  return s.threads == 1 || s.image.blocks >= 4 * s.threads || s.image.blocks % s.threads == 0;
}

// Runs `partial(block, n)` for all samples, then `finish(block)`, then `apply(block, n)`.
template <typename Partial, typename Finish, typename Apply>
void run_phases(const Settings& s, const Partial& partial, const Finish& finish,
                const Apply& apply) {
  const Index blocks = s.image.blocks;
  const Index batch = s.image.batch;
  if (by_block(s)) {
    parallel_for(s.threads, blocks, [&](Index begin, Index end) {
      for (Index block = begin; block < end; ++block) {
        for (Index n = 0; n < batch; ++n) partial(block, n);
        finish(block);
        for (Index n = 0; n < batch; ++n) apply(block, n);
      }
    });
    return;
  }
  const auto over_all = [&](const auto& body) {
    parallel_for(s.threads, blocks * batch, [&](Index begin, Index end) {
      for (Index i = begin; i < end; ++i) body(i / batch, i % batch);
    });
  };
  over_all(partial);
  for (Index block = 0; block < blocks; ++block) finish(block);
  over_all(apply);
}

// Two sums per channel, sample and block.
template <int kBlock>
struct Partials {
  typename Vectors<kBlock>::Double first, second;
};

// The sums over a sample's pixels of what `terms(pixel, first, second)` adds: in float over a few
// pixels, which is as exact as the terms are, and then in double.
template <int kBlock, typename Terms>
Partials<kBlock> sum_pixels(Index pixels, const Terms& terms) {
  using V = Vectors<kBlock>;
  constexpr Index kRun = 8;
  Partials<kBlock> sums{};
  for (Index begin = 0; begin < pixels; begin += kRun) {
    const Index end = std::min(begin + kRun, pixels);
    typename V::Float first{};
    typename V::Float second{};
    for (Index i = begin; i < end; ++i) terms(i, first, second);
    sums.first += V::widen(first);
    sums.second += V::widen(second);
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
  run_phases(s, partial, finish, [&](Index block, Index n) {
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

// The sums that both gradients need. dy counts only where the relu let y through.
template <int kBlock, typename T, bool kRelu>
void param_gradients(const Settings& s, const KernelArgs& args) {
  using V = Vectors<kBlock>;
  const T* x = args.read<T>(0);
  const T* dy = args.read<T>(1);
  const float* mean = args.read(kRelu ? 4 : 2);
  const float* inv_std = args.read(kRelu ? 5 : 3);
  const float* weight = kRelu ? args.read(2) : inv_std;
  const float* bias = kRelu ? args.read(3) : mean;
  float* dweight = args.write(0);
  float* dbias = args.write(1);
  float* carry = args.write(2);
  auto* partials = static_cast<Partials<kBlock>*>(args.workspace);
  const Index batch = s.image.batch;
  const auto partial = [&](Index block, Index n) {
    const Index offset = s.image.template offset<kBlock>(n, block);
    const Affine<kBlock> affine(s, block, mean, inv_std, weight, bias);
    partials[block * batch + n] =
        sum_pixels<kBlock>(s.image.pixels, [&](Index i, auto& first, auto& second) {
          const auto value = V::load(x + offset + i * kBlock);
          auto slope = V::load(dy + offset + i * kBlock);
          if constexpr (kRelu) slope = affine(value) <= 0.0F ? typename V::Float{} : slope;
          first += slope;
          second += slope * (value - affine.mean);
        });
  };
  const auto finish = [&](Index block) {
    const Partials<kBlock> total = total_of(partials + block * batch, batch);
    for (int lane = 0; lane < kBlock; ++lane) {
      const Index c = block * kBlock + lane;
      if (c >= s.image.channels) break;
      dbias[c] = carry[c] = static_cast<float>(total.first[lane]);
      dweight[c] = carry[s.image.channels + c] =
          static_cast<float>(total.second[lane] * inv_std[c]);
    }
  };
  run_phases(s, partial, finish, [](Index, Index) {});
}

template <int kBlock, typename T, bool kRelu>
void data_gradient(const Settings& s, const KernelArgs& args) {
  using V = Vectors<kBlock>;
  const T* x = args.read<T>(0);
  const T* dy = args.read<T>(1);
  const float* weight = args.read(2);
  const float* mean = args.read(kRelu ? 4 : 3);
  const float* inv_std = args.read(kRelu ? 5 : 4);
  const float* bias = kRelu ? args.read(3) : mean;
  const float* carry = args.read(kRelu ? 6 : 5);
  T* dx = args.write<T>(0);
  const auto count = static_cast<float>(s.count());
  parallel_for(s.threads, s.image.blocks * s.image.batch, [&](Index begin, Index end) {
    for (Index part = begin; part < end; ++part) {
      const Index block = part % s.image.blocks;
      const Index offset = s.image.template offset<kBlock>(part / s.image.blocks, block);
      const Affine<kBlock> affine(s, block, mean, inv_std, weight, bias);
      const Index channels = s.image.channels;
      const auto mean_dy = load_channels<kBlock>(carry, block, channels) / count;
      const auto slope = load_channels<kBlock>(carry + channels, block, channels) / count *
                         load_channels<kBlock>(inv_std, block, channels);
      for (Index i = offset; i < offset + s.image.pixels * kBlock; i += kBlock) {
        const auto value = V::load(x + i);
        auto upstream = V::load(dy + i);
        if constexpr (kRelu) upstream = affine(value) <= 0.0F ? typename V::Float{} : upstream;
        V::store(dx + i, (upstream - mean_dy - (value - affine.mean) * slope) * affine.scale);
      }
    }
  });
}

Choice choose(const LayerOperation& op) {
  const Shape& x = op.inputs[0].shape;
  if (x.size() != 4) return {};
  const bool is_backward = op.pass == Pass::backward_params || op.pass == Pass::backward_data;
  Choice choice{"vector", std::vector<Layout>(op.reads.size()), {}, 0};
  const Layout image = blocked(x, image_element(op.options));
  choice.reads[0] = image;
  if (is_backward) choice.reads[1] = image;
  if (op.fusion == Fusion::add_relu) choice.reads.back() = image;
  const int num_writes[kNumPasses] = {5, 1, 1, 3, 1};
  choice.writes.resize(static_cast<std::size_t>(num_writes[static_cast<int>(op.pass)]));
  if (op.pass != Pass::backward_params) choice.writes[0] = image;
  if (op.pass == Pass::forward || op.pass == Pass::backward_params)
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
  const bool relu = op.fusion == Fusion::relu;
  switch (op.pass) {
    case Pass::forward: return [s](const KernelArgs& args) { forward<kBlock, T>(s, args); };
    case Pass::evaluate:
      return [s](const KernelArgs& args) { apply_saved<kBlock, T>(s, args, true); };
    case Pass::replay:
      return [s](const KernelArgs& args) { apply_saved<kBlock, T>(s, args, false); };
    case Pass::backward_params:
      return [s, relu](const KernelArgs& args) {
        relu ? param_gradients<kBlock, T, true>(s, args)
             : param_gradients<kBlock, T, false>(s, args);
      };
    case Pass::backward_data: break;
  }
  return [s, relu](const KernelArgs& args) {
    relu ? data_gradient<kBlock, T, true>(s, args) : data_gradient<kBlock, T, false>(s, args);
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
