// SPDX-License-Identifier: Apache-2.0
// Inverted dropout: zeroes each element with probability p in training, identity in evaluation.
//
//   y = keep * x / (1 - p),  dx = keep * dy / (1 - p),  keep = (u >= p),  u uniform in [0, 1)
//
// u is a pure function of (seed, step, layer key, index of the sample in the global step, element
// within the sample). Nothing is saved: replay and backward draw the same numbers again, whatever
// the micro-batch, thread or device. One Philox call gives the numbers of four elements.
//
// Source: Srivastava et al. 2014, JMLR 15; scaled in training, as in PyTorch.
// Backward reads: dy. In place: y over x, dx over dy. Recompute: yes.
// Errors: ConfigError if p is not in [0, 1]. With p = 1 nothing is kept and y is 0.
#include <algorithm>

#include "engine/error.h"
#include "engine/graph/layer.h"
#include "engine/parallel.h"
#include "engine/rng.h"
#include "layers/input_checks.h"

namespace layup {
namespace {

constexpr std::int64_t kElementsPerDraw = 4;

class Dropout : public Layer {
 public:
  explicit Dropout(double p) : p_(p) {}

  LayerInfo infer(std::span<const TensorSpec> inputs) const override {
    LayerInfo info;
    info.output = only_input("dropout", inputs);
    const auto count = static_cast<double>(num_elements(info.output.shape));
    for (const Pass pass : {Pass::forward, Pass::evaluate, Pass::replay})
      info.pass(pass) = {{{Role::x}}, {{Role::y}}, {{0, 0}}, count};
    info.pass(Pass::backward_data) = {{{Role::dy}}, {{Role::dx}}, {{0, 0}}, count};
    return info;
  }

  Kernel make_kernel(const KernelRequest& request) const override {
    LAYUP_ASSERT(request.pass != Pass::backward_params);
    const std::int64_t num_samples = request.inputs[0].shape[0];
    const std::int64_t count = num_elements(request.inputs[0].shape);
    const int threads = request.threads;
    if (request.pass == Pass::evaluate)
      return [=](const KernelArgs& args) { copy(threads, count, args); };
    const Mask mask{request.layer_key, static_cast<float>(p_), static_cast<float>(1 / (1 - p_)),
                    num_samples == 0 ? 0 : count / num_samples};
    const std::int64_t draws_per_sample =
        (mask.sample_elements + kElementsPerDraw - 1) / kElementsPerDraw;
    return [=](const KernelArgs& args) {
      const std::uint64_t key = mask_key(*args.state, mask.layer_key);
      const std::int64_t first_sample = args.state->first_sample;
      parallel_for(
          threads, num_samples * draws_per_sample, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i)
              apply(mask, key, first_sample, i / draws_per_sample, i % draws_per_sample, args);
          });
    };
  }

  Json params() const override { return {{"p", p_}}; }

 private:
  struct Mask {
    std::uint64_t layer_key;
    float p;
    float scale;
    std::int64_t sample_elements;
  };

  static std::uint64_t mask_key(const StepState& state, std::uint64_t layer_key) {
    return mix(state.seed ^ mix(layer_key ^ mix(static_cast<std::uint64_t>(state.step))));
  }

  static void apply(const Mask& mask, std::uint64_t key, std::int64_t first_sample,
                    std::int64_t sample, std::int64_t draw, const KernelArgs& args) {
    const Philox words = philox(key, static_cast<std::uint64_t>(first_sample + sample),
                                static_cast<std::uint64_t>(draw));
    const std::int64_t begin = draw * kElementsPerDraw;
    const std::int64_t end = std::min(begin + kElementsPerDraw, mask.sample_elements);
    const float* from = args.read(0) + sample * mask.sample_elements;
    float* to = args.write(0) + sample * mask.sample_elements;
    for (std::int64_t e = begin; e < end; ++e) {
      const bool keep = to_unit_float(words[static_cast<std::size_t>(e - begin)]) >= mask.p;
      to[e] = keep ? from[e] * mask.scale : 0;
    }
  }

  static void copy(int threads, std::int64_t count, const KernelArgs& args) {
    const float* x = args.read(0);
    float* y = args.write(0);
    if (x == y) return;
    parallel_for(threads, count, [&](std::int64_t begin, std::int64_t end) {
      std::copy(x + begin, x + end, y + begin);
    });
  }

  double p_;
};

std::unique_ptr<Layer> read(JsonReader& params) {
  return std::make_unique<Dropout>(params.get_number("p", 0.5, {.min = 0, .max = 1}));
}

}  // namespace

LayerType dropout_layer() {
  return {"dropout",
          read,
          {{Json::object(), {{{3, 2, 5, 3}}}},
           {{{"p", 0.3}}, {{{5, 7}}}},
           {{{"p", 0}}, {{{2, 9}}}},
           {{{"p", 1}}, {{{2, 9}}}}}};
}

}  // namespace layup
