// SPDX-License-Identifier: Apache-2.0
// Local response normalisation across channels.
//
//   x [N, C, H, W] -> y [N, C, H, W]
//   s_c  = k + alpha / size * sum of x_j^2,    j in [c - floor(size / 2), c + floor((size - 1) /
//   2)] y_c  = x_c * s_c^-beta                     and in [0, C), all at one pixel dx_c = dy_c *
//   s_c^-beta - 2 * alpha * beta / size * x_c * sum of dy_j * x_j * s_j^(-beta - 1)
//          over the j whose window holds c
//
// Nothing is saved: backward finds s again from x, which costs a few operations per element where
// keeping s would cost as much memory as x.
// Source: Krizhevsky, Sutskever and Hinton 2012, section 3.3, with alpha / size for alpha, as
// PyTorch and Caffe have it; a window of even size lies further to the front, as in PyTorch.
// Backward reads: x, dy. In place: y over x, dx over dy. Recompute: yes. Sums and powers in double.
// Errors: ConfigError for a size below 1 or a negative alpha, beta or k; GraphError for inputs
// that are no images. k = 0 divides by zero where a window holds zeros alone.
#include "layers/lrn.h"

#include <cmath>

#include "engine/error.h"
#include "engine/graph/layer.h"
#include "engine/parallel.h"
#include "layers/input_checks.h"

namespace layup {
namespace {

constexpr std::int64_t kTogether = 16;  // neighbouring pixels, through all channels
constexpr std::int64_t kLargestSize = 1'000'000;

struct Sizes {
  std::int64_t batch, channels, pixels;
  LrnParams params;

  std::int64_t groups() const { return (pixels + kTogether - 1) / kTogether; }
};

// All channels of some neighbouring pixels of one sample.
struct Group {
  std::int64_t first;  // element of channel 0
  std::int64_t count;

  Group(const Sizes& s, std::int64_t number) {
    const std::int64_t pixel = number % s.groups() * kTogether;
    first = number / s.groups() * s.channels * s.pixels + pixel;
    count = std::min(kTogether, s.pixels - pixel);
  }
};

// Sums of rows [c - before, c + after] of `rows` [C][kTogether].
void sum_rows(const double* rows, std::int64_t channels, std::int64_t c, std::int64_t before,
              std::int64_t after, double* sum) {
  std::fill_n(sum, kTogether, 0.0);
  const std::int64_t end = std::min(c + after + 1, channels);
  for (std::int64_t j = std::max<std::int64_t>(c - before, 0); j < end; ++j)
    for (std::int64_t i = 0; i < kTogether; ++i) sum[i] += rows[j * kTogether + i];
}

// squares [C][kTogether], 0 behind the last pixel.
void find_squares(const Sizes& s, const Group& group, const float* x, double* squares) {
  std::fill_n(squares, s.channels * kTogether, 0.0);
  for (std::int64_t c = 0; c < s.channels; ++c)
    for (std::int64_t i = 0; i < group.count; ++i) {
      const double value = x[group.first + c * s.pixels + i];
      squares[c * kTogether + i] = value * value;
    }
}

void forward(const Sizes& s, const Group& group, const float* x, float* y, double* squares) {
  const LrnParams& p = s.params;
  find_squares(s, group, x, squares);
  double sum[kTogether];
  for (std::int64_t c = 0; c < s.channels; ++c) {
    sum_rows(squares, s.channels, c, p.before(), p.after(), sum);
    for (std::int64_t i = 0; i < group.count; ++i) {
      const std::int64_t at = group.first + c * s.pixels + i;
      y[at] = static_cast<float>(x[at] * std::pow(p.k + p.share() * sum[i], -p.beta));
    }
  }
}

// `rows`: squares, then what each channel gives to those in its window; `powers`: s^-beta.
void backward(const Sizes& s, const Group& group, const float* x, const float* dy, float* dx,
              double* rows, double* powers) {
  const LrnParams& p = s.params;
  double sum[kTogether];
  find_squares(s, group, x, rows);
  for (std::int64_t c = 0; c < s.channels; ++c) {
    sum_rows(rows, s.channels, c, p.before(), p.after(), sum);
    for (std::int64_t i = 0; i < kTogether; ++i)
      powers[c * kTogether + i] = p.k + p.share() * sum[i];
  }
  for (std::int64_t c = 0; c < s.channels; ++c)
    for (std::int64_t i = 0; i < group.count; ++i) {
      const std::int64_t at = group.first + c * s.pixels + i;
      double& power = powers[c * kTogether + i];
      const double scale = power;
      power = std::pow(scale, -p.beta);
      rows[c * kTogether + i] = double{dy[at]} * x[at] * power / scale;
    }
  const double factor = 2 * p.share() * p.beta;
  for (std::int64_t c = 0; c < s.channels; ++c) {
    sum_rows(rows, s.channels, c, p.after(), p.before(), sum);
    for (std::int64_t i = 0; i < group.count; ++i) {
      const std::int64_t at = group.first + c * s.pixels + i;
      dx[at] = static_cast<float>(dy[at] * powers[c * kTogether + i] - factor * x[at] * sum[i]);
    }
  }
}

class Lrn : public Layer {
 public:
  explicit Lrn(const LrnParams& params) : params_(params) {}

  LayerInfo infer(std::span<const TensorSpec> inputs) const override {
    LayerInfo info;
    info.output = only_image_input("lrn", inputs);
    const auto count = static_cast<double>(num_elements(info.output.shape));
    // A square, a window and a power (about 20) per element; backward has a second window.
    const double flops = count * (static_cast<double>(params_.size) + 23);
    for (const Pass pass : {Pass::forward, Pass::evaluate, Pass::replay})
      info.pass(pass) = {{{Role::x}}, {{Role::y}}, {{0, 0}}, flops};
    info.pass(Pass::backward_data) = {{{Role::x}, {Role::dy}},
                                      {{Role::dx}},
                                      {{1, 0}},
                                      flops + count * (static_cast<double>(params_.size) + 8)};
    return info;
  }

  std::int64_t workspace_bytes(const KernelRequest& request) const override {
    return checked_multiply(request.threads, row_bytes(request));
  }

  Kernel make_kernel(const KernelRequest& request) const override {
    LAYUP_ASSERT(request.pass != Pass::backward_params);
    const Shape& x = request.inputs[0].shape;
    const Sizes s{x[0], x[1], checked_multiply(x[2], x[3]), params_};
    const int threads = request.threads;
    const std::int64_t row_doubles = row_bytes(request) / std::int64_t{sizeof(double)};
    const bool is_backward = request.pass == Pass::backward_data;
    return [=](const KernelArgs& args) {
      const std::int64_t groups = s.batch * s.groups();
      // A part of the groups, and rows of the workspace, for each thread.
      parallel_for(threads, threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t part = begin; part < end; ++part) {
          double* rows = static_cast<double*>(args.workspace) + part * row_doubles;
          double* powers = rows + s.channels * kTogether;
          for (std::int64_t g = groups * part / threads; g < groups * (part + 1) / threads; ++g) {
            if (is_backward)
              backward(s, Group(s, g), args.read(0), args.read(1), args.write(0), rows, powers);
            else
              forward(s, Group(s, g), args.read(0), args.write(0), rows);
          }
        }
      });
    };
  }

  Json params() const override {
    return {
        {"size", params_.size}, {"alpha", params_.alpha}, {"beta", params_.beta}, {"k", params_.k}};
  }

 private:
  // Of one thread: a double for each channel of a group, two in backward.
  static std::int64_t row_bytes(const KernelRequest& request) {
    const std::int64_t rows = request.pass == Pass::backward_data ? 2 : 1;
    return checked_multiply(request.inputs[0].shape[1],
                            rows * kTogether * std::int64_t{sizeof(double)});
  }

  LrnParams params_;
};

std::unique_ptr<Layer> read(JsonReader& params) {
  return std::make_unique<Lrn>(read_lrn_params(params));
}

}  // namespace

LrnParams read_lrn_params(JsonReader& params) {
  LrnParams result;
  result.size = params.require_int("size", {.min = 1, .max = kLargestSize});
  result.alpha = params.get_number("alpha", result.alpha, {.min = 0});
  result.beta = params.get_number("beta", result.beta, {.min = 0});
  result.k = params.get_number("k", result.k, {.min = 0});
  return result;
}

LayerType lrn_layer() {
  const Json strong = {{"size", 5}, {"alpha", 0.8}};
  return {"lrn",
          read,
          {{strong, {{{2, 7, 3, 3}}}},
           {strong, {{{2, 3, 4, 5}}}},  // fewer channels than a window
           {{{"size", 4}, {"alpha", 0.5}, {"beta", 0.6}, {"k", 2}}, {{{1, 6, 2, 3}}}},
           {{{"size", 1}, {"alpha", 1}, {"beta", 1}}, {{{1, 2, 1, 1}}}},
           {{{"size", 3}}, {{{1, 4, 5, 5}}}}}};
}

}  // namespace layup
