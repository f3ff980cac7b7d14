// SPDX-License-Identifier: Apache-2.0
// Mean over the batch of the cross entropy between softmax(x) and the labels.
//
//   x [N, K] or [N, K, 1, 1], labels i32[N];  y [1];  metric "correct"; saved0 [N]
//   m = max(x_n), s = log(sum(exp(x_n - m)))                              saved0 = s
//   loss_n = s - (1 - e) * (x_n[label] - m) - e * mean(x_n - m)           e = label_smoothing
//   y = weight * mean(loss_n);  correct = number of n whose first largest x_n is at the label
//   dx = loss_gradient * weight / N * (exp(x - m - s) - e / K - (1 - e) * [k = label])
//
// JSON: label_smoothing (0), weight (1), training_only (false): evaluation leaves the loss out, as
// that of an auxiliary classifier. A network's loss is the sum of those that it has.
//
// m is found again in backward rather than folded into saved0, where large logits would swallow
// the digits of s. All sums in double and in a fixed order.
// Source: PyTorch's cross_entropy; label smoothing of Szegedy et al. 2016, arXiv:1512.00567,
// sec. 7. Backward reads: x, labels, saved0. In place: dx over x. Recompute: no, a loss is never
// replayed. A label outside [0, K) gives a loss and a gradient of NaN. The forward pass reports a
// loss that is not finite in StepState::failed. Errors: ConfigError if label_smoothing is not in
// [0, 1] or the weight is not positive.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/error.h"
#include "engine/graph/layer.h"
#include "engine/parallel.h"
#include "layers/input_checks.h"

namespace layup {
namespace {

struct LossShape {
  std::int64_t num_samples = 0;
  std::int64_t classes = 0;
  double smoothing = 0;
  double weight = 1;
};

// One sample's row of the workspace.
struct SampleLoss {
  double loss;
  double correct;
};

// The index of the largest value: the first of equal ones; the first NaN if there is any.
std::int64_t find_largest(const float* x, std::int64_t count) {
  std::int64_t best = 0;
  for (std::int64_t k = 1; k < count && !std::isnan(x[best]); ++k)
    if (x[k] > x[best] || std::isnan(x[k])) best = k;
  return best;
}

double log_of_sum(const float* x, std::int64_t count, double largest) {
  double sum = 0;
  for (std::int64_t k = 0; k < count; ++k) sum += std::exp(x[k] - largest);
  return std::log(sum);
}

SampleLoss sample_loss(const LossShape& shape, const float* x, std::int32_t label, double log_sum,
                       std::int64_t largest) {
  if (label < 0 || label >= shape.classes) return {std::numeric_limits<double>::quiet_NaN(), 0};
  const double m = x[largest];
  double loss = log_sum - (1 - shape.smoothing) * (x[label] - m);
  if (shape.smoothing > 0) {
    double sum = 0;
    for (std::int64_t k = 0; k < shape.classes; ++k) sum += x[k] - m;
    loss -= shape.smoothing * sum / static_cast<double>(shape.classes);
  }
  return {loss, largest == label ? 1.0 : 0.0};
}

// `log_sums` is null in evaluation.
void run_forward(const LossShape& shape, int threads, const KernelArgs& args, float* log_sums,
                 float* correct) {
  const float* x = args.read(0);
  const auto* labels = args.read<std::int32_t>(1);
  auto* samples = static_cast<SampleLoss*>(args.workspace);
  parallel_for(threads, shape.num_samples, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const float* row = x + n * shape.classes;
      const std::int64_t largest = find_largest(row, shape.classes);
      const double log_sum = log_of_sum(row, shape.classes, row[largest]);
      if (log_sums != nullptr) log_sums[n] = static_cast<float>(log_sum);
      samples[n] = sample_loss(shape, row, labels[n], log_sum, largest);
    }
  });
  SampleLoss total{0, 0};
  for (std::int64_t n = 0; n < shape.num_samples; ++n) {
    total.loss += samples[n].loss;
    total.correct += samples[n].correct;
  }
  *args.write(0) =
      static_cast<float>(shape.weight * (total.loss / static_cast<double>(shape.num_samples)));
  *correct = static_cast<float>(total.correct);
}

void run_backward(const LossShape& shape, int threads, const KernelArgs& args) {
  const float* x = args.read(0);
  const auto* labels = args.read<std::int32_t>(1);
  const float* log_sums = args.read(2);
  float* dx = args.write(0);
  const double scale = static_cast<double>(args.state->loss_gradient) * shape.weight /
                       static_cast<double>(shape.num_samples);
  const double base = shape.smoothing / static_cast<double>(shape.classes);
  parallel_for(threads, shape.num_samples, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const float* row = x + n * shape.classes;
      const bool known = labels[n] >= 0 && labels[n] < shape.classes;
      const double m = row[find_largest(row, shape.classes)];
      const double s = known ? log_sums[n] : std::numeric_limits<double>::quiet_NaN();
      for (std::int64_t k = 0; k < shape.classes; ++k) {
        const double target = base + (k == labels[n] ? 1 - shape.smoothing : 0);
        dx[n * shape.classes + k] = static_cast<float>(scale * (std::exp(row[k] - m - s) - target));
      }
    }
  });
}

class SoftmaxCrossEntropy : public Layer {
 public:
  SoftmaxCrossEntropy(double smoothing, double weight, bool training_only)
      : smoothing_(smoothing), weight_(weight), training_only_(training_only) {}

  LayerInfo infer(std::span<const TensorSpec> inputs) const override {
    const TensorSpec& x = only_input("softmax_cross_entropy", inputs);
    const Shape& shape = x.shape;
    const bool vector = shape.size() == 2;
    if (!vector && !(shape.size() == 4 && shape[2] == 1 && shape[3] == 1))
      throw GraphError(
          "softmax_cross_entropy takes an input [N, classes] or [N, classes, 1, 1], found " +
          to_string(shape));
    const auto flops = 5 * static_cast<double>(num_elements(shape));
    LayerInfo info;
    info.output.shape = {1};
    info.saved = {{{shape[0]}}};
    info.metrics = {"correct"};
    info.is_loss = true;
    info.training_only = training_only_;
    info.pass(Pass::forward) = {
        {{Role::x}, {Role::labels}}, {{Role::y}, {Role::saved}, {Role::metric}}, {}, flops};
    info.pass(Pass::evaluate) = {
        {{Role::x}, {Role::labels}}, {{Role::y}, {Role::metric}}, {}, flops};
    info.pass(Pass::backward_data) = {
        {{Role::x}, {Role::labels}, {Role::saved}}, {{Role::dx}}, {{0, 0}}, flops};
    return info;
  }

  std::int64_t workspace_bytes(const KernelRequest& request) const override {
    if (request.pass == Pass::backward_data) return 0;
    return checked_multiply(request.inputs[0].shape[0], sizeof(SampleLoss));
  }

  Kernel make_kernel(const KernelRequest& request) const override {
    const Shape& x = request.inputs[0].shape;
    const LossShape shape{x[0], x[1], smoothing_, weight_};
    const int threads = request.threads;
    if (request.pass == Pass::backward_data)
      return [=](const KernelArgs& args) { run_backward(shape, threads, args); };
    if (request.pass == Pass::evaluate)
      return [=](const KernelArgs& args) {
        run_forward(shape, threads, args, nullptr, args.write(1));
      };
    LAYUP_ASSERT(request.pass == Pass::forward);
    return [=](const KernelArgs& args) {
      run_forward(shape, threads, args, args.write(1), args.write(2));
      if (!std::isfinite(*args.write(0)) && args.state->failed == 0)
        args.state->failed = kFailedLoss;
    };
  }

  Json params() const override {
    Json params = {{"label_smoothing", smoothing_}};
    if (weight_ != 1) params["weight"] = weight_;
    if (training_only_) params["training_only"] = true;
    return params;
  }

 private:
  double smoothing_;
  double weight_;
  bool training_only_;
};

std::unique_ptr<Layer> read(JsonReader& params) {
  return std::make_unique<SoftmaxCrossEntropy>(
      params.get_number("label_smoothing", 0, {.min = 0, .max = 1}),
      params.get_number("weight", 1, {.min = 0, .min_excluded = true}),
      params.get_bool("training_only", false));
}

}  // namespace

LayerType softmax_cross_entropy_layer() {
  return {"softmax_cross_entropy",
          read,
          {{Json::object(), {{{5, 7}}}},
           {{{"label_smoothing", 0.1}}, {{{4, 3}}}},
           {{{"label_smoothing", 1}}, {{{2, 5}}}},
           {{{"weight", 0.3}, {"training_only", true}}, {{{4, 3}}}},
           {Json::object(), {{{3, 4, 1, 1}}}},
           {Json::object(), {{{1, 1}}}}}};
}

}  // namespace layup
