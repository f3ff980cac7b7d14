// SPDX-License-Identifier: Apache-2.0
// Analytic gradients against central differences of fourth order:
//   f'(v) = (8 (f(v + h) - f(v - h)) - (f(v + 2h) - f(v - 2h))) / (12 h) + O(h^4)
// with f = sum(y * dy) in double, or loss_gradient * y of a loss.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "tests/support/layer_checks.h"
#include "tests/support/layer_harness.h"
#include "tests/support/tolerances.h"

namespace layup {
namespace {

constexpr std::uint64_t kSeed = 23;
constexpr std::size_t kMostElements = 300;
// 2 steps are a quarter of the spacing of the values: half the way to the nearest kink.
constexpr double kStepsPerSpacing = 8;
constexpr double kLargestStep = 0.02;

std::string text(double value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::general, 6);
  return {buffer.data(), end.ptr};
}

struct Objective {
  double value = 0;
  double norm = 0;  // of its terms: the scale of its rounding errors
};

Objective evaluate(LayerHarness& harness) {
  harness.run(Pass::forward);
  const std::span<const float> y = harness.values({Role::y});
  double sum = 0;
  double squares = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double upstream =
        harness.info().is_loss ? harness.state().loss_gradient : harness.values({Role::dy})[i];
    sum += y[i] * upstream;
    squares += y[i] * upstream * y[i] * upstream;
  }
  return {sum, std::sqrt(squares)};
}

double difference_quotient(LayerHarness& harness, float& value, double step) {
  const float original = value;
  const auto at = [&](double offset) {
    value = static_cast<float>(original + offset);
    return evaluate(harness).value;
  };
  // The offsets that float32 can represent near the value.
  const auto rounded = [&](double offset) {
    return static_cast<double>(static_cast<float>(original + offset)) - original;
  };
  const double near = (at(step) - at(-step)) / (rounded(step) - rounded(-step));
  const double far = (at(2 * step) - at(-2 * step)) / (rounded(2 * step) - rounded(-2 * step));
  value = original;
  return (4 * near - far) / 3;
}

void check_tensor(const LayerHarness& after_step, Slot variable, Slot gradient,
                  Problems& problems) {
  LayerHarness harness = after_step;
  const std::span<float> values = harness.values(variable);
  const std::span<const float> analytic = harness.values(gradient);
  const double step = std::min(kLargestStep, spacing(values.size()) / kStepsPerSpacing);
  const Objective objective = evaluate(harness);

  double largest = 0;
  for (const float g : analytic) largest = std::max(largest, std::abs(double{g}));
  const double tolerance = kGradient * largest + kGradientRounding *
                                                     std::numeric_limits<float>::epsilon() *
                                                     objective.norm / step;

  if (tolerance > kGradientCoarsest * largest && largest > 0)
    problems.push_back("the check of " + to_string(gradient) + " is too coarse: tolerance " +
                       text(tolerance) + " for a largest gradient of " + text(largest) +
                       "; use a smaller example");

  const std::size_t checked = std::min(values.size(), kMostElements);
  for (std::size_t k = 0; k < checked; ++k) {
    const std::size_t i = k * values.size() / checked;
    const double numeric = difference_quotient(harness, values[i], step);
    if (std::abs(numeric - analytic[i]) <= tolerance) continue;  // false for NaN
    problems.push_back(to_string(gradient) + "[" + std::to_string(i) + "] is " + text(analytic[i]) +
                       ", by differences " + text(numeric) + " (tolerance " + text(tolerance) +
                       ")");
    return;  // one element per tensor is enough to read
  }
}

}  // namespace

Problems check_gradients(const LayerSubject& subject) {
  Problems problems;
  try {
    LayerHarness harness(*subject.layer, subject.inputs);
    harness.fill(kSeed);
    harness.run_step();
    for (std::size_t i = 0; i < subject.inputs.size(); ++i)
      check_tensor(harness, {Role::x, static_cast<int>(i)}, {Role::dx, static_cast<int>(i)},
                   problems);
    for (std::size_t i = 0; i < harness.info().parameters.size(); ++i)
      check_tensor(harness, {Role::parameter, static_cast<int>(i)},
                   {Role::parameter_gradient, static_cast<int>(i)}, problems);
  } catch (const std::exception& error) {
    problems.emplace_back(error.what());
  }
  return problems;
}

}  // namespace layup
