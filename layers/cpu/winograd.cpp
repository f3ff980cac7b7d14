// SPDX-License-Identifier: Apache-2.0
// Each part of the grid (see winograd_geometry.h) transforms the windows of a group of tiles, then,
// chunk by chunk, the other factor; multiplies; transforms back.
#include "layers/cpu/winograd.h"

// Before the headers, whose templates take vectors here: those are inlined, or of one file.
#pragma GCC diagnostic ignored "-Wpsabi"
#include <algorithm>
#include <optional>
#include <vector>

#include "engine/parallel.h"
#include "engine/shape.h"
#include "layers/cpu/cpu_layer.h"
#include "layers/cpu/onednn.h"
#include "layers/cpu/winograd_geometry.h"
#include "layers/cpu/winograd_transforms.h"

namespace layup::cpu {
namespace {

using namespace winograd;
using Index = std::int64_t;

// What a thread computes at once: planes of tiles [group, from] times filters [from, chunk], or,
// for gradients, of windows [group, from], transposed, times upstream [group, chunk].
struct Product {
  dnnl::matmul::primitive_desc descriptor;
  dnnl::memory::desc left, right, result;

  explicit Product(const Geometry& g) {
    using dnnl::memory;
    const auto f32 = memory::data_type::f32;
    const Index m = g.is_gradient ? g.own_from() : g.group;
    const Index k = g.is_gradient ? g.group : g.from.channels;
    left = {{kPlanes, m, k},
            f32,
            g.is_gradient ? memory::dims{k * m, 1, m} : memory::dims{m * k, k, 1}};
    right = {{kPlanes, k, g.chunk}, f32, memory::dims{k * g.chunk, g.chunk, 1}};
    result = {{kPlanes, m, g.chunk}, f32, memory::dims{m * g.chunk, g.chunk, 1}};
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (g.is_summed()) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    descriptor = {dnnl::matmul::desc(left, right, result), attributes, onednn_engine()};
  }

  // Keeps its operands: one for each thread.
  Kernel kernel() const {
    using From = Argument::From;
    return primitive_kernel(
        dnnl::matmul(descriptor),
        {{DNNL_ARG_SRC, From::read, 0, left},
         {DNNL_ARG_WEIGHTS, From::read, 1, right},
         {DNNL_ARG_DST, From::write, 0, result},
         {DNNL_ARG_SCRATCHPAD, From::workspace, 0, descriptor.scratchpad_desc()}},
        1);
  }
};

// Where everything lies in a thread's part of the workspace, in floats.
struct Places {
  Index windows = 0;  // [planes, group, from]
  Index factor = 0;   // filters [planes, from, chunk] or upstream [planes, group, chunk]
  Index result = 0;   // tiles [planes, group, chunk] or gradients [planes, from, chunk] of filters
  Index scratch = 0;
  Index total = 0;

  Places(const Geometry& g, const Product& product) {
    factor = windows + padded(kPlanes * g.group * g.own_from());
    result = factor + padded(g.is_gradient ? g.chunk_tiles() : g.chunk_filters());
    const Index results = g.is_summed() ? g.own_chunks() : 1;  // those stay until the last group
    scratch = result + results * padded(g.is_gradient ? g.chunk_filters() : g.chunk_tiles());
    total = scratch + padded(divide_up(scratchpad_bytes(product.descriptor), sizeof(float)));
  }
  static Index padded(Index count) { return round_up(count, Index{16}); }
};

class WinogradRun {
 public:
  WinogradRun(const Geometry& geometry, const Product& product)
      : g_(geometry), places_(geometry, product), transforms_(geometry) {
    for (int i = 0; i < g_.threads; ++i) products_.push_back(product.kernel());
  }

  void operator()(const KernelArgs& args) const {
    as_team(g_.threads, [&](const TeamMember& member) {
      for (Index part = member.begin_of(g_.threads); part < member.end_of(g_.threads); ++part) {
        const Part own{part / g_.columns, part % g_.columns,
                       static_cast<float*>(args.workspace) + part * places_.total,
                       &products_[static_cast<std::size_t>(part)]};
        g_.is_gradient ? make_gradients(args, own) : make_tiles(args, own);
      }
    });
  }

 private:
  struct Part {
    Index row, column;  // of the grid
    float* memory;
    const Kernel* product;
  };
  template <typename Body>
  void for_chunks(const Part& own, const Body& body) const {
    const Index end = g_.num_chunks * (own.column + 1) / g_.columns;
    for (Index c = g_.num_chunks * own.column / g_.columns; c < end; ++c) body(c);
  }
  // The tile in row i of the group that begins at `first`, if there is one before `end`.
  static std::optional<Index> tile_at(Index first, Index i, Index end) {
    return first + i < end ? std::optional(first + i) : std::nullopt;
  }
  void multiply(const Part& own, float* result) const {
    const void* reads[] = {own.memory + places_.windows, own.memory + places_.factor};
    void* writes[] = {result};
    (*own.product)({reads, writes, own.memory + places_.scratch, nullptr});
  }

  void make_tiles(const KernelArgs& args, const Part& own) const {
    const float* const bias = g_.has_bias ? args.read(2) : nullptr;
    float* const result = own.memory + places_.result;
    const Index end = g_.tiles * (own.row + 1) / g_.rows;
    for (Index first = g_.tiles * own.row / g_.rows; first < end; first += g_.group) {
      for (Index i = 0; i < g_.group; ++i)
        transforms_.windows(args.read(0), tile_at(first, i, end), i, 0,
                            own.memory + places_.windows);
      for_chunks(own, [&](Index c) {
        transforms_.filters(args.read(1), c, own.memory + places_.factor);
        multiply(own, result);
        for (Index i = 0; i < std::min(g_.group, end - first); ++i)
          transforms_.outputs(result, first + i, i, c, bias, args.write(0));
      });
    }
  }

  void make_gradients(const KernelArgs& args, const Part& own) const {
    const Index channel = own.row * g_.own_from();
    for (Index first = 0; first < g_.tiles; first += g_.group) {
      const bool is_last = first + g_.group >= g_.tiles;
      for (Index i = 0; i < g_.group; ++i)
        transforms_.windows(args.read(0), tile_at(first, i, g_.tiles), i, channel,
                            own.memory + places_.windows);
      float* sums = own.memory + places_.result;
      for_chunks(own, [&](Index c) {
        for (Index i = 0; i < g_.group; ++i)
          transforms_.upstream(args.read(1), tile_at(first, i, g_.tiles), i, c,
                               own.memory + places_.factor);
        if (g_.is_summed() && first == 0) std::fill_n(sums, g_.chunk_filters(), 0.0F);
        multiply(own, sums);
        if (is_last) transforms_.filter_gradients(sums, channel, c, args.write(0));
        if (is_last && g_.has_bias && own.row == 0)
          transforms_.bias_gradients(args.read(1), c, args.write(1));
        if (g_.is_summed()) sums += Places::padded(g_.chunk_filters());
      });
    }
  }

  Geometry g_;
  Places places_;
  Transforms transforms_;
  std::vector<Kernel> products_;
};

}  // namespace

WinogradPlan plan_winograd(const WinogradConv& conv) {
  const ThreadScope scope(1);
  const Geometry g(conv);
  const Product product(g);
  WinogradPlan plan;
  plan.kernel = "winograd 4x4, " + kernel_name(product.descriptor);
  plan.workspace_bytes = checked_multiply(g.threads * Places(g, product).total, sizeof(float));
  // Sums of several groups that outgrow a cache go through memory once per group.
  constexpr Index kMostSums = 5 << 20;
  const bool is_in_cache =
      !g.is_summed() || g.own_chunks() * g.chunk_filters() * Index{sizeof(float)} <= kMostSums;
  plan.is_worthwhile = plan.kernel.find("brg") != std::string::npos && g.imbalance() <= 1.5 &&
                       is_in_cache && plan.workspace_bytes <= 128 << 20;
  return plan;
}

Kernel winograd_kernel(const WinogradConv& conv) {
  const ThreadScope scope(1);
  const Geometry g(conv);
  return WinogradRun(g, Product(g));
}

}  // namespace layup::cpu
