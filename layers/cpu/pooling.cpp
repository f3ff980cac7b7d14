// SPDX-License-Identifier: Apache-2.0
// max_pool2d and global_avg_pool of images in blocks of channels. Contracts: layers/max_pool2d.cpp,
// layers/global_avg_pool.cpp; positions of maxima are kept as there, a byte each, in blocks.
#include <algorithm>
#include <limits>
#include <type_traits>

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

template <int kBlock, bool kKeepPositions, typename T>
void pool_pixel(const PoolShape& pool, const T* plane, Index p, Index q, T* y,
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

template <int kBlock, bool kKeepPositions, typename T>
void forward(const MaxPool& pool, const KernelArgs& args) {
  const PoolShape& s = pool.shape;
  const T* x = args.read<T>(0);
  T* y = args.write<T>(0);
  std::uint8_t* positions = kKeepPositions ? args.write<std::uint8_t>(1) : nullptr;
  parallel_for(pool.threads, s.planes * s.out_height, [&](Index begin, Index end) {
    for (Index row = begin; row < end; ++row)
      for (Index q = 0; q < s.out_width; ++q) {
        const Index out = (row * s.out_width + q) * kBlock;
        pool_pixel<kBlock, kKeepPositions, T>(s, x + row / s.out_height * s.area() * kBlock,
                                              row % s.out_height, q, y + out,
                                              kKeepPositions ? positions + out : nullptr);
      }
  });
}

// Row h of dx is summed up in float32 at `sums`, which may be the row itself: window by window, in
// their order.
template <int kBlock, typename T>
void backward_row(const PoolShape& s, const std::uint8_t* positions, const T* dy, Index h,
                  float* sums) {
  using V = Vectors<kBlock>;
  std::fill_n(sums, s.width * kBlock, 0.0F);
  const Index at = h + s.params.padding[0];
  const Index beyond = at - s.params.kernel[0];  // a window that starts here ends before h
  const Index first = beyond < 0 ? 0 : beyond / s.params.stride[0] + 1;
  const Index last = std::min(at / s.params.stride[0], s.out_height - 1);
  for (Index p = first; p <= last; ++p)
    for (Index q = 0; q < s.out_width; ++q) {
      const Window columns = column_window(s, q);
      const Index out = (p * s.out_width + q) * kBlock;
      typename V::Byte bytes;
      std::memcpy(&bytes, positions + out, sizeof(bytes));
      const auto where = __builtin_convertvector(bytes, typename V::Int);
      const auto upstream = V::load(dy + out);
      const Index row = (h - row_window(s, p).start) * s.params.kernel[1] - columns.start;
      for (Index w = columns.begin; w < columns.end; ++w) {
        float* const target = sums + w * kBlock;
        const typename V::Float share =
            where == static_cast<std::int32_t>(row + w) ? upstream : typename V::Float{};
        V::store(target, V::load(target) + share);
      }
    }
}

template <int kBlock, typename T>
void backward_plane(const PoolShape& s, const std::uint8_t* positions, const T* dy, T* dx,
                    float* sums) {
  using V = Vectors<kBlock>;
  for (Index h = 0; h < s.height; ++h) {
    T* const row = dx + h * s.width * kBlock;
    if constexpr (std::is_same_v<T, float>) {
      backward_row<kBlock>(s, positions, dy, h, row);
    } else {
      backward_row<kBlock>(s, positions, dy, h, sums);
      for (Index i = 0; i < s.width * kBlock; i += kBlock) V::store(row + i, V::load(sums + i));
    }
  }
}

template <int kBlock, typename T>
Kernel make_max_pool_for(const MaxPool& pool, Pass pass) {
  if (pass == Pass::forward)
    return [pool](const KernelArgs& args) { forward<kBlock, true, T>(pool, args); };
  if (pass != Pass::backward_data)
    return [pool](const KernelArgs& args) { forward<kBlock, false, T>(pool, args); };
  return [pool](const KernelArgs& args) {
    const PoolShape& s = pool.shape;
    const auto* positions = args.read<std::uint8_t>(0);
    const T* dy = args.read<T>(1);
    T* dx = args.write<T>(0);
    auto* sums = static_cast<float*>(args.workspace);  // of bf16: a row for every plane
    parallel_for(pool.threads, s.planes, [&](Index begin, Index end) {
      for (Index plane = begin; plane < end; ++plane)
        backward_plane<kBlock, T>(s, positions + plane * s.out_area() * kBlock,
                                  dy + plane * s.out_area() * kBlock,
                                  dx + plane * s.area() * kBlock,
                                  sums == nullptr ? nullptr : sums + plane * s.width * kBlock);
    });
  };
}

// Only of maps that come in blocks, and of windows whose positions fit a byte.
Choice choose_max_pool(const LayerOperation& op) {
  if (op.node.info.saved[0].dtype != DType::u8) return {};
  const Element element = image_element(op.options);
  const Layout x = blocked(op.inputs[0].shape, element);
  const Layout y = blocked(op.node.info.output.shape, element);
  const Layout positions = blocked(op.node.info.output.shape, Element::own);
  const bool comes_in_blocks = !op.reads[0].is_row_major();  // x, or the positions
  if (!comes_in_blocks) return {};
  if (op.pass == Pass::backward_data) {
    const Shape row = {x.dims[0], round_up(x.dims[1], channel_block()), x.dims[3]};
    const Index workspace = element == Element::own ? 0 : num_bytes(TensorSpec{row});
    return {"vector", {positions, y}, {x}, workspace};
  }
  if (op.pass == Pass::forward) return {"vector", {x}, {y, positions}, 0};
  return {"vector", {x}, {y}, 0};
}

Kernel make_max_pool(const LayerOperation& op) {
  const JsonNode node = JsonNode::from(op.node.layer->params());
  JsonErrors errors("max_pool2d");
  JsonReader reader(node, "", errors);
  MaxPool pool{infer_pool_shape("max_pool2d", op.inputs, read_pool_params(reader)), op.threads};
  pool.shape.planes =
      op.inputs[0].shape[0] * BlockedImage(op.inputs[0].shape, channel_block()).blocks;
  if (op.writes[0].element == Element::bf16) return make_max_pool_for<16, Bf16>(pool, op.pass);
  return channel_block() == 16 ? make_max_pool_for<16, float>(pool, op.pass)
                               : make_max_pool_for<8, float>(pool, op.pass);
}

// y [N, C, 1, 1] is plain float32: with whole blocks of channels that is the same order of bytes.
Choice choose_average(const LayerOperation& op) {
  const Shape& x = op.inputs[0].shape;
  if (x[1] % channel_block() != 0) return {};
  const Layout image = blocked(x, image_element(op.options));
  if (op.pass == Pass::backward_data) return {"vector", {Layout{}}, {image}, 0};
  if (op.reads[0].is_row_major()) return {};
  return {"vector", {image}, {Layout{}}, 0};
}

template <int kBlock, typename T>
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
          T* dx = args.write<T>(0) + part * image.pixels * kBlock;
          for (Index i = 0; i < image.pixels; ++i) V::store(dx + i * kBlock, share);
          continue;
        }
        const T* x = args.read<T>(0) + part * image.pixels * kBlock;
        typename V::Double sum{};
        for (Index i = 0; i < image.pixels; ++i) sum += V::widen(V::load(x + i * kBlock));
        V::store(args.write(0) + part * kBlock, V::narrow(sum / static_cast<double>(image.pixels)));
      }
    });
  };
}

Kernel make_average(const LayerOperation& op) {
  if (image_element(op.options) == Element::bf16) return make_average_for<16, Bf16>(op);
  return channel_block() == 16 ? make_average_for<16, float>(op) : make_average_for<8, float>(op);
}

}  // namespace

CpuLayer max_pool2d_cpu() { return {"max_pool2d", choose_max_pool, make_max_pool}; }
CpuLayer global_avg_pool_cpu() { return {"global_avg_pool", choose_average, make_average}; }

}  // namespace layup::cpu
