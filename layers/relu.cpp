// SPDX-License-Identifier: Apache-2.0
// Rectified linear unit.
//
//   y = x where x > 0, else 0          NaN stays NaN, so that divergence is seen
//   dx = dy where y > 0, else 0        the derivative at 0 is 0, as in PyTorch
//
// JSON: save_mask (false): forward also saves one bit per element, set where dy passes, and
// backward reads that instead of y; the same bits come out. Used where nothing else wants y in
// backward.
//
// Backward reads: y, or the mask. In place: y over x, dx over dy. Recompute: yes.
#include <algorithm>

#include "engine/error.h"
#include "engine/graph/layer.h"
#include "engine/parallel.h"
#include "layers/input_checks.h"

namespace layup {
namespace {

constexpr std::int64_t kBits = 8;

class Relu : public Layer {
 public:
  explicit Relu(bool save_mask) : save_mask_(save_mask) {}

  LayerInfo infer(std::span<const TensorSpec> inputs) const override {
    LayerInfo info;
    info.output = only_input("relu", inputs);
    const std::int64_t count = num_elements(info.output.shape);
    const auto flops = static_cast<double>(count);
    for (const Pass pass : {Pass::forward, Pass::evaluate, Pass::replay})
      info.pass(pass) = {{{Role::x}}, {{Role::y}}, {{0, 0}}, flops};
    if (save_mask_) {
      info.saved = {{{(count + kBits - 1) / kBits}, DType::u8}};
      info.pass(Pass::forward).writes.push_back({Role::saved});
    }
    info.pass(Pass::backward_data) = {
        {{save_mask_ ? Role::saved : Role::y}, {Role::dy}}, {{Role::dx}}, {{1, 0}}, flops};
    return info;
  }

  std::shared_ptr<const Layer> with_smaller_saves() const override {
    return save_mask_ ? nullptr : std::make_shared<Relu>(true);
  }

  Kernel make_kernel(const KernelRequest& request) const override {
    LAYUP_ASSERT(request.pass != Pass::backward_params);
    const std::int64_t count = num_elements(request.inputs[0].shape);
    const int threads = request.threads;
    const bool masks = save_mask_;
    if (request.pass == Pass::backward_data)
      return [=](const KernelArgs& args) {
        masks ? backward_from_mask(threads, count, args) : backward(threads, count, args);
      };
    if (masks && request.pass == Pass::forward)
      return [=](const KernelArgs& args) { forward_with_mask(threads, count, args); };
    return [=](const KernelArgs& args) { forward(threads, count, args); };
  }

  Json params() const override {
    return save_mask_ ? Json{{"save_mask", true}} : Json(Json::object());
  }

 private:
  static void forward(int threads, std::int64_t count, const KernelArgs& args) {
    const float* x = args.read(0);
    float* y = args.write(0);
    parallel_for(threads, count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) y[i] = x[i] <= 0 ? 0 : x[i];
    });
  }

  static void backward(int threads, std::int64_t count, const KernelArgs& args) {
    const float* y = args.read(0);
    const float* dy = args.read(1);
    float* dx = args.write(0);
    parallel_for(threads, count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) dx[i] = y[i] <= 0 ? 0 : dy[i];
    });
  }

  // The masks are taken a byte at a time, so that no two threads share one.
  static void forward_with_mask(int threads, std::int64_t count, const KernelArgs& args) {
    const float* x = args.read(0);
    float* y = args.write(0);
    auto* mask = args.write<std::uint8_t>(1);
    parallel_for(threads, (count + kBits - 1) / kBits, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t byte = begin; byte < end; ++byte) {
        const std::int64_t first = byte * kBits;
        const std::int64_t bits = std::min(kBits, count - first);
        unsigned passes = 0;
        for (std::int64_t bit = 0; bit < bits; ++bit) {
          const float value = x[first + bit];
          passes |= (value <= 0 ? 0U : 1U) << bit;
          y[first + bit] = value <= 0 ? 0 : value;
        }
        mask[byte] = static_cast<std::uint8_t>(passes);
      }
    });
  }

  static void backward_from_mask(int threads, std::int64_t count, const KernelArgs& args) {
    const auto* mask = args.read<std::uint8_t>(0);
    const float* dy = args.read(1);
    float* dx = args.write(0);
    parallel_for(threads, (count + kBits - 1) / kBits, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t byte = begin; byte < end; ++byte) {
        const std::int64_t first = byte * kBits;
        const std::int64_t bits = std::min(kBits, count - first);
        const unsigned passes = mask[byte];
        for (std::int64_t bit = 0; bit < bits; ++bit)
          dx[first + bit] = (passes >> bit & 1U) != 0 ? dy[first + bit] : 0;
      }
    });
  }

  bool save_mask_;
};

std::unique_ptr<Layer> read(JsonReader& params) {
  return std::make_unique<Relu>(params.get_bool("save_mask", false));
}

}  // namespace

LayerType relu_layer() {
  const Json mask = {{"save_mask", true}};
  return {"relu",
          read,
          {{Json::object(), {{{2, 3, 5, 4}}}},
           {Json::object(), {{{3, 7}}}},
           {Json::object(), {{{1, 1, 1, 1}}}},
           {mask, {{{2, 3, 5, 5}}}},
           {mask, {{{1, 7}}}}}};
}

}  // namespace layup
