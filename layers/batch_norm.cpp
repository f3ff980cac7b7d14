// SPDX-License-Identifier: Apache-2.0
// Batch normalisation.
//
//   x [N,C] or [N,C,H,W] -> y of the same shape;  weight, bias [C];  M = N * H * W
//   training:    mean and var of each channel over N, H, W (var divided by M)
//                inv_std = 1 / sqrt(var + eps),  x_hat = (x - mean) * inv_std
//                y = weight * x_hat + bias
//                running_mean = (1 - momentum) * running_mean + momentum * mean
//                running_var  = (1 - momentum) * running_var + momentum * var * M / (M - 1)
//   evaluation:  mean and var are the running ones
//   replay:      y once more from the saved mean and inv_std, by the same code, hence the same
//                bits; the running ones stay as they are
//   dbias = sum(dy),  dweight = sum(dy * x_hat)
//   dx = weight * inv_std * (dy - dbias / M - x_hat * dweight / M)
//
// Source: Ioffe and Szegedy 2015, arXiv:1502.03167, Algorithms 1 and 2.
// Differs: momentum is the weight of the new value, as in PyTorch.
// Saved: mean, inv_std [C]. Carry: [2,C], sum(dy) and sum(dy * x_hat), which the data gradient
// needs even where weight and bias are not trained. Statistics are summed in double.
// Backward reads: x, dy, saved, and weight for the data gradient; the data gradient also what the
// parameter gradient left in the carry.
// Errors (infer): GraphError for an input of another rank or type. Training with one value per
// channel is refused through LayerInfo::training_error and by make_kernel(Pass::forward).
#include <Eigen/Core>
#include <cmath>

#include "engine/error.h"
#include "engine/graph/layer.h"
#include "engine/parallel.h"
#include "layers/input_checks.h"
#include "layers/sums.h"

namespace layup {
namespace {

using Index = std::int64_t;
using Values = Eigen::Map<Eigen::ArrayXf>;
using ConstValues = Eigen::Map<const Eigen::ArrayXf>;

struct BatchNormSizes {
  Index batch = 0;
  Index channels = 0;
  Index pixels = 1;  // H * W

  Index count() const { return batch * pixels; }  // M
};

struct BatchNorm {
  BatchNormSizes size;
  double eps = 0;
  double momentum = 0;
  int threads = 1;

  // Calls body(offset of the row) for the row of H * W values that each sample has of a channel.
  template <typename Body>
  void for_rows(Index channel, const Body& body) const {
    for (Index n = 0; n < size.batch; ++n) body((n * size.channels + channel) * size.pixels);
  }

  template <typename Body>
  void for_channels(const Body& body) const {
    parallel_for(threads, size.channels, [&](Index begin, Index end) {
      for (Index c = begin; c < end; ++c) body(c);
    });
  }

  // The one normalisation. y may be x: every element depends on its own only.
  void normalize(Index channel, const float* x, float mean, float inv_std, float weight, float bias,
                 float* y) const {
    const float scale = weight * inv_std;
    for_rows(channel, [&](Index row) {
      Values(y + row, size.pixels) = (ConstValues(x + row, size.pixels) - mean) * scale + bias;
    });
  }

  void forward(const float* x, const float* weight, const float* bias, float* y, float* mean,
               float* inv_std, float* running_mean, float* running_var) const;
  void replay(const float* x, const float* weight, const float* bias, const float* mean,
              const float* inv_std, float* y) const;
  void evaluate(const float* x, const float* weight, const float* bias, const float* running_mean,
                const float* running_var, float* y) const;
  void param_gradients(const float* x, const float* dy, const float* mean, const float* inv_std,
                       float* dweight, float* dbias, float* carry) const;
  void data_gradient(const float* x, const float* dy, const float* weight, const float* mean,
                     const float* inv_std, const float* carry, float* dx) const;
};

void BatchNorm::forward(const float* x, const float* weight, const float* bias, float* y,
                        float* mean, float* inv_std, float* running_mean,
                        float* running_var) const {
  const auto count = static_cast<double>(size.count());
  const auto update = [this](float& running, double value) {
    running = static_cast<float>((1 - momentum) * running + momentum * value);
  };
  for_channels([&](Index c) {
    LaneSum sum;
    for_rows(c, [&](Index row) {
      sum.add(size.pixels, [from = x + row](Index i) { return static_cast<double>(from[i]); });
    });
    const double center = sum.total() / count;
    LaneSum squares;
    for_rows(c, [&](Index row) {
      squares.add(size.pixels, [from = x + row, center](Index i) {
        const double deviation = from[i] - center;
        return deviation * deviation;
      });
    });
    const double variance = squares.total() / count;
    mean[c] = static_cast<float>(center);
    inv_std[c] = static_cast<float>(1 / std::sqrt(variance + eps));
    update(running_mean[c], center);
    update(running_var[c], squares.total() / (count - 1));
    normalize(c, x, mean[c], inv_std[c], weight[c], bias[c], y);
  });
}

void BatchNorm::replay(const float* x, const float* weight, const float* bias, const float* mean,
                       const float* inv_std, float* y) const {
  for_channels([&](Index c) { normalize(c, x, mean[c], inv_std[c], weight[c], bias[c], y); });
}

void BatchNorm::evaluate(const float* x, const float* weight, const float* bias,
                         const float* running_mean, const float* running_var, float* y) const {
  for_channels([&](Index c) {
    const auto inv_std = static_cast<float>(1 / std::sqrt(running_var[c] + eps));
    normalize(c, x, running_mean[c], inv_std, weight[c], bias[c], y);
  });
}

void BatchNorm::param_gradients(const float* x, const float* dy, const float* mean,
                                const float* inv_std, float* dweight, float* dbias,
                                float* carry) const {
  for_channels([&](Index c) {
    LaneSum sum;
    LaneSum product;
    for_rows(c, [&](Index row) {
      sum.add(size.pixels, [from = dy + row](Index i) { return static_cast<double>(from[i]); });
      product.add(size.pixels, [a = dy + row, b = x + row, center = mean[c]](Index i) {
        return static_cast<double>(a[i]) * static_cast<double>(b[i] - center);
      });
    });
    dbias[c] = carry[c] = static_cast<float>(sum.total());
    dweight[c] = carry[size.channels + c] = static_cast<float>(product.total() * inv_std[c]);
  });
}

void BatchNorm::data_gradient(const float* x, const float* dy, const float* weight,
                              const float* mean, const float* inv_std, const float* carry,
                              float* dx) const {
  const auto count = static_cast<float>(size.count());
  for_channels([&](Index c) {
    const float center = mean[c];
    const float mean_dy = carry[c] / count;
    const float slope = carry[size.channels + c] / count * inv_std[c];
    const float scale = weight[c] * inv_std[c];
    for_rows(c, [&](Index row) {
      Values(dx + row, size.pixels) = (ConstValues(dy + row, size.pixels) - mean_dy -
                                       (ConstValues(x + row, size.pixels) - center) * slope) *
                                      scale;
    });
  });
}

class BatchNormLayer final : public Layer {
 public:
  explicit BatchNormLayer(JsonReader& params)
      : eps_(params.get_number("eps", 1e-5, {.min = 0, .min_excluded = true})),
        momentum_(params.get_number("momentum", 0.1, {.min = 0, .max = 1})),
        weight_init_(params.get_number("weight_init", 1)) {}

  LayerInfo infer(std::span<const TensorSpec> inputs) const override;
  Kernel make_kernel(const KernelRequest& request) const override;
  Json params() const override {
    return {{"eps", eps_}, {"momentum", momentum_}, {"weight_init", weight_init_}};
  }

 private:
  static BatchNormSizes sizes(std::span<const TensorSpec> inputs);
  static std::string training_error(const BatchNormSizes& size, const Shape& x);

  double eps_;
  double momentum_;
  double weight_init_;
};

BatchNormSizes BatchNormLayer::sizes(std::span<const TensorSpec> inputs) {
  const Shape& x = only_input("batch_norm", inputs).shape;
  if (x.size() != 2 && x.size() != 4)
    throw GraphError("batch_norm takes an input [N, C] or [N, C, H, W], found " + to_string(x));
  return {x[0], x[1], x.size() == 4 ? checked_multiply(x[2], x[3]) : 1};
}

std::string BatchNormLayer::training_error(const BatchNormSizes& size, const Shape& x) {
  if (size.count() != 1) return "";
  return "batch norm needs more than one value per channel in training; batch 1 " +
         std::string(x.size() == 4 ? "with 1x1 maps " : "") + "has one";
}

LayerInfo BatchNormLayer::infer(std::span<const TensorSpec> inputs) const {
  const BatchNormSizes size = sizes(inputs);
  LayerInfo info;
  info.output = inputs[0];
  const Shape per_channel = {size.channels};
  info.parameters = {{"weight", per_channel, {Initializer::Kind::constant, weight_init_}},
                     {"bias", per_channel, {Initializer::Kind::constant, 0}}};
  info.buffers = {{"running_mean", per_channel, 0}, {"running_var", per_channel, 1}};
  info.saved = {{per_channel, DType::f32}, {per_channel, DType::f32}};
  info.carries = {{{2, size.channels}, DType::f32}};
  info.training_error = training_error(size, inputs[0].shape);

  num_bytes(info.output);
  const auto elements = static_cast<double>(num_elements(info.output.shape));
  const Slot x{Role::x, 0};
  const Slot y{Role::y, 0};
  const Slot dy{Role::dy, 0};
  const Slot weight{Role::parameter, 0};
  const Slot bias{Role::parameter, 1};
  const Slot mean{Role::saved, 0};
  const Slot inv_std{Role::saved, 1};
  const Slot running_mean{Role::buffer, 0};
  const Slot running_var{Role::buffer, 1};
  const Slot carry{Role::carry, 0};
  info.pass(Pass::forward) = {.reads = {x, weight, bias},
                              .writes = {y, mean, inv_std, running_mean, running_var},
                              .in_place = {{0, 0}},
                              .flops = 7 * elements};
  info.pass(Pass::evaluate) = {.reads = {x, weight, bias, running_mean, running_var},
                               .writes = {y},
                               .in_place = {{0, 0}},
                               .flops = 3 * elements};
  info.pass(Pass::replay) = {.reads = {x, weight, bias, mean, inv_std},
                             .writes = {y},
                             .in_place = {{0, 0}},
                             .flops = 3 * elements};
  info.pass(Pass::backward_params) = {
      .reads = {x, dy, mean, inv_std},
      .writes = {{Role::parameter_gradient, 0}, {Role::parameter_gradient, 1}, carry},
      .in_place = {},
      .flops = 4 * elements};
  info.pass(Pass::backward_data) = {.reads = {x, dy, weight, mean, inv_std, carry},
                                    .writes = {{Role::dx, 0}},
                                    .in_place = {{1, 0}, {0, 0}},
                                    .flops = 5 * elements};
  return info;
}

Kernel BatchNormLayer::make_kernel(const KernelRequest& request) const {
  const BatchNorm norm{sizes(request.inputs), eps_, momentum_, request.threads};
  switch (request.pass) {
    case Pass::forward: {
      const std::string error = training_error(norm.size, request.inputs[0].shape);
      if (!error.empty()) throw GraphError(error);
      return [norm](const KernelArgs& args) {
        norm.forward(args.read(0), args.read(1), args.read(2), args.write(0), args.write(1),
                     args.write(2), args.write(3), args.write(4));
      };
    }
    case Pass::evaluate:
      return [norm](const KernelArgs& args) {
        norm.evaluate(args.read(0), args.read(1), args.read(2), args.read(3), args.read(4),
                      args.write(0));
      };
    case Pass::replay:
      return [norm](const KernelArgs& args) {
        norm.replay(args.read(0), args.read(1), args.read(2), args.read(3), args.read(4),
                    args.write(0));
      };
    case Pass::backward_params:
      return [norm](const KernelArgs& args) {
        norm.param_gradients(args.read(0), args.read(1), args.read(2), args.read(3), args.write(0),
                             args.write(1), args.write(2));
      };
    case Pass::backward_data: break;
  }
  return [norm](const KernelArgs& args) {
    norm.data_gradient(args.read(0), args.read(1), args.read(2), args.read(3), args.read(4),
                       args.read(5), args.write(0));
  };
}

LayerExample example(Json params, Shape x) {
  return {std::move(params), {TensorSpec{std::move(x), DType::f32}}};
}

}  // namespace

LayerType batch_norm_layer() {
  return {.name = "batch_norm",
          .read = [](JsonReader& params) -> std::unique_ptr<Layer> {
            return std::make_unique<BatchNormLayer>(params);
          },
          .examples = {
              example(Json::object(), {3, 4, 5, 5}),
              example(Json::object(), {6, 3}),
              example(Json::object(), {1, 3, 4, 4}),
              example({{"eps", 1e-3}, {"momentum", 0.01}}, {2, 2, 3, 3}),
              example({{"momentum", 1}, {"weight_init", 0.5}}, {2, 5, 1, 7}),
              example({{"momentum", 0}, {"eps", 0.5}}, {5, 1}),
          }};
}

}  // namespace layup
