// SPDX-License-Identifier: Apache-2.0
// avg_pool2d of images that come in blocks of channels. Contract: layers/avg_pool2d.cpp; sums in
// double, rows first, as there.
#include "engine/parallel.h"
#include "layers/cpu/cpu_layer.h"
#include "layers/cpu/vector.h"
#include "layers/pooling.h"

namespace layup::cpu {
namespace {

using Index = std::int64_t;

struct AveragePool {
  PoolShape shape;  // planes: samples times blocks of channels
  bool count_include_pad;
  int threads;
};

template <int kBlock>
void forward_plane(const AveragePool& pool, const float* x, float* y) {
  using V = Vectors<kBlock>;
  const PoolShape& s = pool.shape;
  for (Index p = 0; p < s.out_height; ++p)
    for (Index q = 0; q < s.out_width; ++q) {
      const Window rows = row_window(s, p);
      const Window columns = column_window(s, q);
      typename V::Double sum{};
      for (Index h = rows.begin; h < rows.end; ++h)
        for (Index w = columns.begin; w < columns.end; ++w)
          sum += V::widen(V::load(x + (h * s.width + w) * kBlock));
      const double divisor = average_divisor(s, rows, columns, pool.count_include_pad);
      V::store(y + (p * s.out_width + q) * kBlock, V::narrow(sum / divisor));
    }
}

template <int kBlock>
void backward_plane(const AveragePool& pool, const float* dy, float* dx) {
  using V = Vectors<kBlock>;
  const PoolShape& s = pool.shape;
  std::fill_n(dx, s.area() * kBlock, 0.0F);
  for (Index p = 0; p < s.out_height; ++p)
    for (Index q = 0; q < s.out_width; ++q) {
      const Window rows = row_window(s, p);
      const Window columns = column_window(s, q);
      const auto share = V::load(dy + (p * s.out_width + q) * kBlock) /
                         average_divisor(s, rows, columns, pool.count_include_pad);
      for (Index h = rows.begin; h < rows.end; ++h)
        for (Index w = columns.begin; w < columns.end; ++w) {
          float* const target = dx + (h * s.width + w) * kBlock;
          V::store(target, V::load(target) + share);
        }
    }
}

Choice choose(const LayerOperation& op) {
  if (op.reads[0].is_plain()) return {};
  const Layout x = blocked(op.inputs[0].shape);
  const Layout y = blocked(op.node.info.output.shape);
  if (op.pass == Pass::backward_data) return {"vector", {y}, {x}, 0};
  return {"vector", {x}, {y}, 0};
}

template <int kBlock>
Kernel make_for(const AveragePool& pool, Pass pass) {
  const bool is_backward = pass == Pass::backward_data;
  return [pool, is_backward](const KernelArgs& args) {
    const PoolShape& s = pool.shape;
    const float* from = args.read(0);
    float* to = args.write(0);
    parallel_for(pool.threads, s.planes, [&](Index begin, Index end) {
      for (Index plane = begin; plane < end; ++plane) {
        const Index large = plane * s.area() * kBlock;
        const Index small = plane * s.out_area() * kBlock;
        if (is_backward)
          backward_plane<kBlock>(pool, from + small, to + large);
        else
          forward_plane<kBlock>(pool, from + large, to + small);
      }
    });
  };
}

Kernel make(const LayerOperation& op) {
  const Json params = op.node.layer->params();
  const JsonNode node = JsonNode::from(params);
  JsonErrors errors("avg_pool2d");
  JsonReader reader(node, "", errors);
  AveragePool pool{infer_pool_shape("avg_pool2d", op.inputs, read_pool_params(reader)),
                   params["count_include_pad"].get<bool>(), op.threads};
  pool.shape.planes =
      op.inputs[0].shape[0] * BlockedImage(op.inputs[0].shape, channel_block()).blocks;
  return channel_block() == 16 ? make_for<16>(pool, op.pass) : make_for<8>(pool, op.pass);
}

}  // namespace

CpuLayer avg_pool2d_cpu() { return {"avg_pool2d", choose, make}; }

}  // namespace layup::cpu
