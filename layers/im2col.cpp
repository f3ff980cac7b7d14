// SPDX-License-Identifier: Apache-2.0
#include "layers/im2col.h"

#include <algorithm>
#include <cstring>

namespace layup {
namespace {

using Index = std::int64_t;

Index ceil_divide(Index a, Index b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

// Outputs o in [first, last) read an input inside the image; input = o * stride + shift.
struct Range {
  Index first;
  Index last;
};

Range valid_outputs(Index outputs, Index inputs, Index stride, Index shift) {
  const Index first = std::clamp<Index>(ceil_divide(-shift, stride), 0, outputs);
  const Index last = std::clamp<Index>(ceil_divide(inputs - shift, stride), first, outputs);
  return {first, last};
}

// One kernel position (r, s): which outputs it serves, and how outputs map to inputs.
struct Tap {
  Range rows;
  Range columns;
  Index shift_h;
  Index shift_w;
};

Tap make_tap(const ConvGeometry& g, Index r, Index s) {
  const Index shift_h = r * g.dilation[0] - g.padding[0];
  const Index shift_w = s * g.dilation[1] - g.padding[1];
  return {valid_outputs(g.out_height, g.height, g.stride[0], shift_h),
          valid_outputs(g.out_width, g.width, g.stride[1], shift_w), shift_h, shift_w};
}

// With stride 1 and Q = W, output pixel i reads input pixel i + offset, a whole map in one run;
// only the pixels whose column falls into the padding are wrong (they wrap into the next row).
bool maps_are_shifted(const ConvGeometry& g) {
  return g.stride[0] == 1 && g.stride[1] == 1 && g.out_width == g.width;
}

Range shifted_run(const ConvGeometry& g, const Tap& tap, Index begin, Index end) {
  const Index offset = tap.shift_h * g.width + tap.shift_w;
  const Index first = std::max({begin, tap.rows.first * g.out_width, -offset});
  const Index last = std::min({end, tap.rows.last * g.out_width, g.height * g.width - offset});
  return {std::min(first, end), std::max(std::min(first, end), last)};
}

void clear_columns(const ConvGeometry& g, Range columns, Range run, Index begin, float* row) {
  if (columns.first >= columns.last || run.first >= run.last) return;
  for (Index p = run.first / g.out_width; p * g.out_width < run.last; ++p) {
    const Index first = std::max(run.first, p * g.out_width + columns.first);
    const Index last = std::min(run.last, p * g.out_width + columns.last);
    for (Index i = first; i < last; ++i) row[i - begin] = 0;
  }
}

void clear_padding(const ConvGeometry& g, const Tap& tap, Range run, Index begin, float* row) {
  clear_columns(g, {0, tap.columns.first}, run, begin, row);
  clear_columns(g, {tap.columns.last, g.out_width}, run, begin, row);
}

void copy_shifted(const ConvGeometry& g, const Tap& tap, Index begin, Index end, const float* x,
                  float* row) {
  const Range run = shifted_run(g, tap, begin, end);
  std::fill(row, row + (run.first - begin), 0.0F);
  if (run.first < run.last)
    std::memcpy(row + (run.first - begin), x + run.first + tap.shift_h * g.width + tap.shift_w,
                sizeof(float) * (run.last - run.first));
  std::fill(row + (run.last - begin), row + (end - begin), 0.0F);
  clear_padding(g, tap, run, begin, row);
}

void add_shifted(const ConvGeometry& g, const Tap& tap, Index begin, Index end, float* row,
                 float* dx) {
  const Range run = shifted_run(g, tap, begin, end);
  if (run.first >= run.last) return;
  clear_padding(g, tap, run, begin, row);
  float* __restrict to = dx + run.first + tap.shift_h * g.width + tap.shift_w;
  const float* __restrict from = row + (run.first - begin);
  for (Index i = 0; i < run.last - run.first; ++i) to[i] += from[i];
}

// Calls body(p, first q, last q) for the parts of [begin, end) in each output row.
template <typename Body>
void for_output_rows(const ConvGeometry& g, Index begin, Index end, const Body& body) {
  for (Index i = begin; i < end;) {
    const Index p = i / g.out_width;
    const Index last = std::min(end, (p + 1) * g.out_width);
    body(p, i - p * g.out_width, last - p * g.out_width);
    i = last;
  }
}

void copy_strided(const ConvGeometry& g, const Tap& tap, Index begin, Index end,
                  const float* __restrict x, float* __restrict row) {
  for_output_rows(g, begin, end, [&](Index p, Index q0, Index q1) {
    float* to = row + (p * g.out_width - begin);
    if (p < tap.rows.first || p >= tap.rows.last) {
      std::fill(to + q0, to + q1, 0.0F);
      return;
    }
    const Index first = std::clamp(tap.columns.first, q0, q1);
    const Index last = std::clamp(tap.columns.last, first, q1);
    const Index line = (p * g.stride[0] + tap.shift_h) * g.width + tap.shift_w;
    std::fill(to + q0, to + first, 0.0F);
    if (g.stride[1] == 1) {
      for (Index q = first; q < last; ++q) to[q] = x[line + q];
    } else {
      for (Index q = first; q < last; ++q) to[q] = x[line + q * g.stride[1]];
    }
    std::fill(to + last, to + q1, 0.0F);
  });
}

void add_strided(const ConvGeometry& g, const Tap& tap, Index begin, Index end,
                 const float* __restrict row, float* __restrict dx) {
  for_output_rows(g, begin, end, [&](Index p, Index q0, Index q1) {
    if (p < tap.rows.first || p >= tap.rows.last) return;
    const float* from = row + (p * g.out_width - begin);
    const Index first = std::clamp(tap.columns.first, q0, q1);
    const Index last = std::clamp(tap.columns.last, first, q1);
    const Index line = (p * g.stride[0] + tap.shift_h) * g.width + tap.shift_w;
    if (g.stride[1] == 1) {
      for (Index q = first; q < last; ++q) dx[line + q] += from[q];
    } else {
      for (Index q = first; q < last; ++q) dx[line + q * g.stride[1]] += from[q];
    }
  });
}

// Calls body(tap, channel, row of the column matrix).
template <typename Body>
void for_taps(const ConvGeometry& g, Index channels, const Body& body) {
  const Index taps = g.kernel[0] * g.kernel[1];
  for (Index r = 0; r < g.kernel[0]; ++r)
    for (Index s = 0; s < g.kernel[1]; ++s) {
      const Tap tap = make_tap(g, r, s);
      for (Index c = 0; c < channels; ++c) body(tap, c, c * taps + r * g.kernel[1] + s);
    }
}

}  // namespace

void im2col(const ConvGeometry& g, Index channels, Index begin, Index end, const float* x,
            float* columns, Index stride) {
  const auto copy = maps_are_shifted(g) ? copy_shifted : copy_strided;
  for_taps(g, channels, [&](const Tap& tap, Index c, Index row) {
    copy(g, tap, begin, end, x + c * g.height * g.width, columns + row * stride);
  });
}

void col2im(const ConvGeometry& g, Index channels, Index begin, Index end, float* columns,
            Index stride, float* dx) {
  const bool shifted = maps_are_shifted(g);
  for_taps(g, channels, [&](const Tap& tap, Index c, Index row) {
    float* from = columns + row * stride;
    float* to = dx + c * g.height * g.width;
    if (shifted) {
      add_shifted(g, tap, begin, end, from, to);
    } else {
      add_strided(g, tap, begin, end, from, to);
    }
  });
}

}  // namespace layup
