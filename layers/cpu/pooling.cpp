// SPDX-License-Identifier: Apache-2.0
// max_pool2d and global_avg_pool of images in blocks of channels. Contracts: layers/max_pool2d.cpp,
// layers/global_avg_pool.cpp; positions of maxima are kept as there, a byte each, in blocks.
#include <limits>

#include "engine/parallel.h"
#include "layers/cpu/cpu_layer.h"
#include "layers/cpu/vector.h"
#include "layers/pooling.h"

namespace layup::cpu {
namespace {

using Index = std::int64_t;

struct MaxPool {
  PoolShape shape;  // planes: samples times blocks of channels
  int threads;
};

template <int kBlock, bool kKeepPositions>
void pool_pixel(const PoolShape& pool, const float* plane, Index p, Index q, float* y,
                std::uint8_t* positions) {
  using V = Vectors<kBlock>;
  const Window rows = row_window(pool, p);
  const Window columns = column_window(pool, q);
  const auto position_of = [&](Index h, Index w) {
    return static_cast<std::int32_t>((h - rows.start) * pool.params.kernel[1] + w - columns.start);
  };
  typename V::Float best = typename V::Float{} - std::numeric_limits<float>::infinity();
  typename V::Int where = typename V::Int{} + position_of(rows.begin, columns.begin);
  for (Index h = rows.begin; h < rows.end; ++h)
    for (Index w = columns.begin; w < columns.end; ++w) {
      const auto value = V::load(plane + (h * pool.width + w) * kBlock);
      const typename V::Int wins = (value > best) | (value != value);  // a NaN wins
      best = wins != 0 ? value : best;
      where = wins != 0 ? typename V::Int{} + position_of(h, w) : where;
    }
  V::store(y, best);
  if constexpr (kKeepPositions) {
    const auto bytes = __builtin_convertvector(where, typename V::Byte);
    std::memcpy(positions, &bytes, sizeof(bytes));
  }
}

template <int kBlock, bool kKeepPositions>
void forward(const MaxPool& pool, const KernelArgs& args) {
  const PoolShape& s = pool.shape;
  const float* x = args.read(0);
  float* y = args.write(0);
  std::uint8_t* positions = kKeepPositions ? args.write<std::uint8_t>(1) : nullptr;
  parallel_for(pool.threads, s.planes * s.out_height, [&](Index begin, Index end) {
    for (Index row = begin; row < end; ++row)
      for (Index q = 0; q < s.out_width; ++q) {
        const Index out = (row * s.out_width + q) * kBlock;
        pool_pixel<kBlock, kKeepPositions>(s, x + row / s.out_height * s.area() * kBlock,
                                           row % s.out_height, q, y + out,
                                           kKeepPositions ? positions + out : nullptr);
      }
  });
}

template <int kBlock>
void backward_plane(const PoolShape& s, const std::uint8_t* positions, const float* dy, float* dx) {
  using V = Vectors<kBlock>;
  std::fill_n(dx, s.area() * kBlock, 0.0F);
  for (Index p = 0; p < s.out_height; ++p)
    for (Index q = 0; q < s.out_width; ++q) {
      const Window rows = row_window(s, p);
      const Window columns = column_window(s, q);
      const Index out = (p * s.out_width + q) * kBlock;
      typename V::Byte bytes;
      std::memcpy(&bytes, positions + out, sizeof(bytes));
      const auto where = __builtin_convertvector(bytes, typename V::Int);
      const auto upstream = V::load(dy + out);
      for (Index h = rows.begin; h < rows.end; ++h)
        for (Index w = columns.begin; w < columns.end; ++w) {
          const auto position =
              static_cast<std::int32_t>((h - rows.start) * s.params.kernel[1] + w - columns.start);
          float* const target = dx + (h * s.width + w) * kBlock;
          const typename V::Float share = where == position ? upstream : typename V::Float{};
          V::store(target, V::load(target) + share);
        }
    }
}

template <int kBlock>
Kernel make_max_pool_for(const MaxPool& pool, Pass pass) {
  if (pass == Pass::forward)
    return [pool](const KernelArgs& args) { forward<kBlock, true>(pool, args); };
  if (pass != Pass::backward_data)
    return [pool](const KernelArgs& args) { forward<kBlock, false>(pool, args); };
  return [pool](const KernelArgs& args) {
    const PoolShape& s = pool.shape;
    const auto* positions = args.read<std::uint8_t>(0);
    const float* dy = args.read(1);
    float* dx = args.write(0);
    parallel_for(pool.threads, s.planes, [&](Index begin, Index end) {
      for (Index plane = begin; plane < end; ++plane)
        backward_plane<kBlock>(s, positions + plane * s.out_area() * kBlock,
                               dy + plane * s.out_area() * kBlock, dx + plane * s.area() * kBlock);
    });
  };
}

// Only of maps that come in blocks, and of windows whose positions fit a byte.
Choice choose_max_pool(const LayerOperation& op) {
  if (op.node.info.saved[0].dtype != DType::u8) return {};
  const Layout x = blocked(op.inputs[0].shape);
  Shape out = op.node.info.output.shape;
  const Layout y = blocked(out);
  const bool comes_in_blocks = !op.reads[0].is_plain();  // x, or the positions
  if (!comes_in_blocks) return {};
  if (op.pass == Pass::backward_data) return {"vector", {y, y}, {x}, 0};
  return {"vector", {x}, std::vector<Layout>(op.pass == Pass::forward ? 2 : 1, y), 0};
}

Kernel make_max_pool(const LayerOperation& op) {
  const JsonNode node = JsonNode::from(op.node.layer->params());
  JsonErrors errors("max_pool2d");
  JsonReader reader(node, "", errors);
  MaxPool pool{infer_pool_shape("max_pool2d", op.inputs, read_pool_params(reader)), op.threads};
  pool.shape.planes =
      op.inputs[0].shape[0] * BlockedImage(op.inputs[0].shape, channel_block()).blocks;
  return channel_block() == 16 ? make_max_pool_for<16>(pool, op.pass)
                               : make_max_pool_for<8>(pool, op.pass);
}

// y [N, C, 1, 1] is plain: with whole blocks of channels that is the same order of bytes.
Choice choose_average(const LayerOperation& op) {
  const Shape& x = op.inputs[0].shape;
  if (x[1] % channel_block() != 0) return {};
  if (op.pass == Pass::backward_data) return {"vector", {Layout{}}, {blocked(x)}, 0};
  if (op.reads[0].is_plain()) return {};
  return {"vector", {blocked(x)}, {Layout{}}, 0};
}

template <int kBlock>
Kernel make_average_for(const LayerOperation& op) {
  using V = Vectors<kBlock>;
  const BlockedImage image(op.inputs[0].shape, kBlock);
  const int threads = op.threads;
  const bool is_backward = op.pass == Pass::backward_data;
  return [=](const KernelArgs& args) {
    parallel_for(threads, image.batch * image.blocks, [&](Index begin, Index end) {
      for (Index part = begin; part < end; ++part) {
        if (is_backward) {
          const auto share =
              V::load(args.read(0) + part * kBlock) / static_cast<float>(image.pixels);
          float* dx = args.write(0) + part * image.pixels * kBlock;
          for (Index i = 0; i < image.pixels; ++i) V::store(dx + i * kBlock, share);
          continue;
        }
        const float* x = args.read(0) + part * image.pixels * kBlock;
        typename V::Double sum{};
        for (Index i = 0; i < image.pixels; ++i) sum += V::widen(V::load(x + i * kBlock));
        V::store(
            args.write(0) + part * kBlock,
            __builtin_convertvector(sum / static_cast<double>(image.pixels), typename V::Float));
      }
    });
  };
}

Kernel make_average(const LayerOperation& op) {
  return channel_block() == 16 ? make_average_for<16>(op) : make_average_for<8>(op);
}

}  // namespace

CpuLayer max_pool2d_cpu() { return {"max_pool2d", choose_max_pool, make_max_pool}; }
CpuLayer global_avg_pool_cpu() { return {"global_avg_pool", choose_average, make_average}; }

}  // namespace layup::cpu
