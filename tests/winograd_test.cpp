// SPDX-License-Identifier: Apache-2.0
// Winograd's F(4x4, 3x3) against the definition of a convolution, in double.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "engine/error.h"
#include "engine/layout.h"
#include "layers/cpu/cpu_layer.h"
#include "layers/cpu/winograd.h"
#include "layers/cpu/winograd_maps.h"
#include "tests/support/layer_harness.h"
#include "tests/support/tolerances.h"

namespace layup::cpu {
namespace {

using Index = std::int64_t;
using Values = std::vector<float>;

Values random_values(Index count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  Values values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(engine);
  return values;
}

// Calls body(x, weight, y) with the offsets of the factors and the result of every product.
template <typename Body>
void for_products(const WinogradConv& conv, const Body& body) {
  const auto& [n, c, h, w] = std::array{conv.x[0], conv.x[1], conv.x[2], conv.x[3]};
  const auto& [k, p, q] = std::array{conv.y[1], conv.y[2], conv.y[3]};
  for (Index in = 0; in < n; ++in)
    for (Index ik = 0; ik < k; ++ik)
      for (Index ic = 0; ic < c; ++ic)
        for (Index tap = 0; tap < 9; ++tap)
          for (Index ip = 0; ip < p; ++ip) {
            const Index ih = ip + tap / 3 - conv.padding[0];
            if (ih < 0 || ih >= h) continue;
            for (Index iq = 0; iq < q; ++iq) {
              const Index iw = iq + tap % 3 - conv.padding[1];
              if (iw < 0 || iw >= w) continue;
              body(((in * c + ic) * h + ih) * w + iw, (ik * c + ic) * 9 + tap,
                   ((in * k + ik) * p + ip) * q + iq);
            }
          }
}

struct Case {
  Shape x;
  Index out_channels;
  Index padding[2];

  WinogradConv conv(Pass pass, int threads, bool has_bias = true) const {
    const Shape y = {x[0], out_channels, x[2] + 2 * padding[0] - 2, x[3] + 2 * padding[1] - 2};
    return {pass, x, y, {padding[0], padding[1]}, has_bias, threads};
  }
  Shape weight() const { return {out_channels, x[1], 3, 3}; }
};

// Broken tiles and windows at all edges, groups of tiles and sums over them, parts of tiles and of
// channels, chunks of 16 and of 32.
const Case kCases[] = {
    {{2, 32, 9, 11}, 48, {1, 1}},  {{3, 64, 13, 10}, 64, {0, 1}}, {{1, 16, 7, 5}, 32, {2, 2}},
    {{1, 32, 66, 62}, 32, {1, 1}}, {{3, 32, 66, 62}, 64, {1, 0}}, {{2, 128, 5, 6}, 256, {1, 1}},
    {{1, 16, 3, 3}, 16, {0, 0}},
};

Layout weight_layout(const Shape& shape) {
  const Index block = channel_block();
  return blocked_layout(shape, {0, 1, 2, 3}, {{1, block}, {0, block}});
}
Values placed(const Layout& layout, const Shape& shape, const Values& plain) {
  Values result(plain.size());
  from_plain(layout, shape, plain.data(), result.data());
  return result;
}

// What the kernel writes, plain, from operands in blocks; memory that it need not read is NaN.
std::vector<Values> run(const WinogradConv& conv, const std::vector<Values>& reads,
                        const std::vector<std::pair<Layout, Shape>>& writes) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<const void*> read_pointers;
  for (const Values& values : reads) read_pointers.push_back(values.data());
  std::vector<Values> written;
  std::vector<void*> write_pointers;
  for (const auto& [layout, shape] : writes)
    written.emplace_back(static_cast<std::size_t>(num_elements(shape)), nan);
  for (Values& values : written) write_pointers.push_back(values.data());
  GuardedBuffer workspace(plan_winograd(conv).workspace_bytes);
  workspace.fill(kPoison);
  const Kernel kernel = winograd_kernel(conv);
  kernel({read_pointers.data(), write_pointers.data(), workspace.bytes().data(), nullptr});
  CHECK(workspace.is_intact());
  const std::vector<Values> first = written;
  kernel({read_pointers.data(), write_pointers.data(), workspace.bytes().data(), nullptr});
  CHECK(written == first);
  std::vector<Values> plain;
  for (std::size_t i = 0; i < writes.size(); ++i) {
    const auto& [layout, shape] = writes[i];
    plain.emplace_back(written[i].size());
    if (layout.is_plain())
      plain.back() = written[i];
    else
      to_plain(layout, shape, written[i].data(), plain.back().data());
  }
  return plain;
}

double relative_error(const Values& found, const std::vector<double>& expected) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    difference += (found[i] - expected[i]) * (found[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

template <typename Map>
std::array<std::array<double, Map::kFrom>, Map::kTo> matrix_of() {
  std::array<std::array<double, Map::kFrom>, Map::kTo> matrix;
  for (int j = 0; j < Map::kFrom; ++j) {
    double from[Map::kFrom] = {};
    double to[Map::kTo];
    from[j] = 1;
    Map::apply(from, to);
    for (int i = 0; i < Map::kTo; ++i) matrix[i][j] = to[i];
  }
  return matrix;
}

TEST_CASE("winograd: the maps make a correlation of one row, and gradients are transposed maps") {
  using namespace winograd;
  const auto data = matrix_of<DataMap>();
  const auto filter = matrix_of<FilterMap>();
  const auto output = matrix_of<OutputMap>();
  for (int i = 0; i < kTile; ++i)
    for (int j = 0; j < kWindow; ++j)
      for (int k = 0; k < kFilter; ++k) {
        double sum = 0;
        for (int e = 0; e < kWindow; ++e) sum += output[i][e] * filter[e][k] * data[e][j];
        CHECK(sum == doctest::Approx(i + k == j ? 1 : 0).epsilon(1e-6));
      }
  const auto upstream = matrix_of<UpstreamMap>();
  const auto gradient = matrix_of<GradientMap>();
  for (int e = 0; e < kWindow; ++e) {
    for (int i = 0; i < kTile; ++i) CHECK(upstream[e][i] == doctest::Approx(output[i][e]));
    for (int k = 0; k < kFilter; ++k) CHECK(gradient[k][e] == doctest::Approx(filter[e][k]));
  }
}

TEST_CASE("winograd: forward is the convolution") {
  if (channel_block() != 16) return;
  for (const Case& item : kCases) {
    const WinogradConv one = item.conv(Pass::forward, 1);
    const Values x = random_values(num_elements(one.x), 1);
    const Values weight = random_values(num_elements(item.weight()), 2);
    const Values bias = random_values(item.out_channels, 3);
    std::vector<double> y(static_cast<std::size_t>(num_elements(one.y)));
    const Index pixels = one.y[2] * one.y[3];
    for (std::size_t i = 0; i < y.size(); ++i)
      y[i] = bias[static_cast<std::size_t>(static_cast<Index>(i) / pixels % one.y[1])];
    for_products(one, [&](Index ix, Index iw, Index iy) { y[iy] += double{x[ix]} * weight[iw]; });
    for (const int threads : {1, 2, 3, 8}) {
      INFO(to_string(one.x) << " to " << to_string(one.y) << ", threads " << threads);
      const auto found = run(item.conv(Pass::forward, threads),
                             {placed(blocked(one.x), one.x, x),
                              placed(weight_layout(item.weight()), item.weight(), weight), bias},
                             {{blocked(one.y), one.y}});
      CHECK(relative_error(found[0], y) <= kWinograd);
    }
  }
}

TEST_CASE("winograd: backward_data is its transpose") {
  if (channel_block() != 16) return;
  for (const Case& item : kCases) {
    const WinogradConv one = item.conv(Pass::backward_data, 1);
    const Values dy = random_values(num_elements(one.y), 1);
    const Values weight = random_values(num_elements(item.weight()), 2);
    std::vector<double> dx(static_cast<std::size_t>(num_elements(one.x)));
    for_products(one, [&](Index ix, Index iw, Index iy) { dx[ix] += double{dy[iy]} * weight[iw]; });
    for (const int threads : {1, 2, 3, 8}) {
      INFO(to_string(one.x) << " from " << to_string(one.y) << ", threads " << threads);
      const auto found = run(item.conv(Pass::backward_data, threads),
                             {placed(blocked(one.y), one.y, dy),
                              placed(weight_layout(item.weight()), item.weight(), weight)},
                             {{blocked(one.x), one.x}});
      CHECK(relative_error(found[0], dx) <= kWinograd);
    }
  }
}

TEST_CASE("winograd: backward_params sums over samples and pixels") {
  if (channel_block() != 16) return;
  for (const Case& item : kCases) {
    const WinogradConv one = item.conv(Pass::backward_params, 1);
    const Values x = random_values(num_elements(one.x), 1);
    const Values dy = random_values(num_elements(one.y), 2);
    std::vector<double> dweight(static_cast<std::size_t>(num_elements(item.weight())));
    for_products(one, [&](Index ix, Index iw, Index iy) { dweight[iw] += double{x[ix]} * dy[iy]; });
    std::vector<double> dbias(static_cast<std::size_t>(item.out_channels));
    const Index pixels = one.y[2] * one.y[3];
    for (std::size_t i = 0; i < dy.size(); ++i)
      dbias[static_cast<std::size_t>(static_cast<Index>(i) / pixels % one.y[1])] += dy[i];
    for (const int threads : {1, 2, 3, 8}) {
      INFO(to_string(one.x) << " and " << to_string(one.y) << ", threads " << threads);
      const auto found =
          run(item.conv(Pass::backward_params, threads),
              {placed(blocked(one.x), one.x, x), placed(blocked(one.y), one.y, dy)},
              {{weight_layout(item.weight()), item.weight()}, {Layout{}, {item.out_channels}}});
      CHECK(relative_error(found[0], dweight) <= kWinograd);
      CHECK(relative_error(found[1], dbias) <= kWinograd);
    }
  }
}

TEST_CASE("winograd: without a bias nothing is read or written for one") {
  if (channel_block() != 16) return;
  const Case& item = kCases[1];
  const WinogradConv forward = item.conv(Pass::forward, 2, false);
  const Values x = placed(blocked(forward.x), forward.x, random_values(num_elements(forward.x), 1));
  const Values weight = placed(weight_layout(item.weight()), item.weight(),
                               random_values(num_elements(item.weight()), 2));
  const Values no_bias(static_cast<std::size_t>(item.out_channels), 0.0F);
  const std::vector<std::pair<Layout, Shape>> y = {{blocked(forward.y), forward.y}};
  CHECK(run(forward, {x, weight}, y) == run(item.conv(Pass::forward, 2), {x, weight, no_bias}, y));
  const Values dy =
      placed(blocked(forward.y), forward.y, random_values(num_elements(forward.y), 3));
  const std::pair<Layout, Shape> dweight = {weight_layout(item.weight()), item.weight()};
  CHECK(run(item.conv(Pass::backward_params, 2, false), {x, dy}, {dweight})[0] ==
        run(item.conv(Pass::backward_params, 2), {x, dy},
            {dweight, {Layout{}, {item.out_channels}}})[0]);
}

TEST_CASE("winograd: worthwhile with work for all threads, and with sums that a cache holds") {
  if (channel_block() != 16) return;
  const auto is_worthwhile = [](Pass pass, Index channels, Index pixels, int threads) {
    const Shape image = {8, channels, pixels, pixels};
    const WinogradPlan plan = plan_winograd({pass, image, image, {1, 1}, false, threads});
    return plan.is_worthwhile;
  };
  if (plan_winograd({Pass::forward, {8, 64, 14, 14}, {8, 64, 14, 14}, {1, 1}, false, 1})
          .kernel.find("brg") == std::string::npos)
    return;
  CHECK(is_worthwhile(Pass::forward, 256, 14, 2));
  CHECK(is_worthwhile(Pass::forward, 512, 7, 16));
  CHECK(is_worthwhile(Pass::backward_params, 512, 14, 2));
  CHECK(!is_worthwhile(Pass::backward_params, 512, 14, 1));  // two groups of tiles, 36 MiB of sums
  CHECK(!is_worthwhile(Pass::backward_params, 512, 28, 2));
  CHECK(!is_worthwhile(Pass::backward_params, 64, 14, 32));  // two chunks and four blocks: 8 parts
}

}  // namespace
}  // namespace layup::cpu
