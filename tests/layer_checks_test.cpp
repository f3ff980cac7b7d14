// SPDX-License-Identifier: Apache-2.0
// The checks of the layer suite find the mistakes that they are there for: one layer, y = x * x,
// with one mistake at a time.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "engine/error.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/layer_checks.h"
#include "tests/support/layer_harness.h"

using namespace layup;

namespace {

enum class Mistake {
  none,
  wrong_gradient,
  one_wrong_element,
  nan_gradient,
  accumulates,
  hidden_in_workspace,
  remembers_forward,
  in_place_too_early,
  replay_differs,
  counts_runs,
  depends_on_threads,
  allocates,
  writes_outside,
  changes_input,
  forgets_dx,
  reads_dy_in_forward,
  loses_parameter,
  ignores_unknown_keys,
};

class Square : public Layer {
 public:
  Square(Mistake mistake, std::int64_t power) : mistake_(mistake), power_(power) {}

  LayerInfo infer(std::span<const TensorSpec> inputs) const override {
    LayerInfo info;
    info.output = inputs[0];
    for (const Pass pass : {Pass::forward, Pass::evaluate, Pass::replay})
      info.pass(pass) = {{{Role::x}}, {{Role::y}}, {{0, 0}}, 1};
    info.pass(Pass::backward_data) = {{{Role::x}, {Role::dy}}, {{Role::dx}}, {{0, 0}, {1, 0}}, 1};
    if (mistake_ == Mistake::forgets_dx) info.pass(Pass::backward_data) = {};
    if (mistake_ == Mistake::reads_dy_in_forward)
      info.pass(Pass::forward).reads.push_back({Role::dy});
    return info;
  }

  std::int64_t workspace_bytes(const KernelRequest& /*request*/) const override { return 64; }

  Kernel make_kernel(const KernelRequest& request) const override {
    const std::int64_t count = num_elements(request.inputs[0].shape);
    if (request.pass == Pass::backward_data)
      return [this, count](const KernelArgs& args) { backward(count, args); };
    return [this, count, pass = request.pass, threads = request.threads](const KernelArgs& args) {
      forward(count, pass, threads, args);
    };
  }

  Json params() const override {
    if (mistake_ == Mistake::loses_parameter) return {{"power", 2}};
    return {{"power", power_}};
  }

 private:
  void forward(std::int64_t count, Pass pass, int threads, const KernelArgs& args) const {
    const float* x = args.read(0);
    float* y = args.write(0);
    float factor = 1;
    if (mistake_ == Mistake::replay_differs && pass == Pass::replay) factor = 1.0000001F;
    if (mistake_ == Mistake::depends_on_threads && threads == 3) factor = 1.0000001F;
    if (mistake_ == Mistake::counts_runs) factor = static_cast<float>(++num_runs_);
    if (mistake_ == Mistake::allocates) {
      void* volatile block = std::malloc(16);  // volatile: or the compiler leaves both calls out
      std::free(block);
    }
    if (mistake_ == Mistake::in_place_too_early) y[0] = 0;
    for (std::int64_t i = 0; i < count; ++i) y[i] = factor * x[i] * x[i];
    if (mistake_ == Mistake::remembers_forward) remembered_ = x[0];
    if (mistake_ == Mistake::writes_outside) y[count] = 0;
    if (mistake_ == Mistake::changes_input) const_cast<float*>(x)[0] = 0;
  }

  void backward(std::int64_t count, const KernelArgs& args) const {
    const float* x = args.read(0);
    const float* dy = args.read(1);
    float* dx = args.write(0);
    for (std::int64_t i = 0; i < count; ++i) {
      float gradient = 2 * x[i] * dy[i];
      if (mistake_ == Mistake::wrong_gradient) gradient = x[i] * dy[i];
      if (mistake_ == Mistake::one_wrong_element && i == 5) gradient += 0.05F;
      if (mistake_ == Mistake::nan_gradient && i == 5) gradient = std::nanf("");
      if (mistake_ == Mistake::remembers_forward) gradient += remembered_;
      if (mistake_ == Mistake::accumulates) gradient += dx[i];
      if (mistake_ == Mistake::hidden_in_workspace)
        gradient += static_cast<float*>(args.workspace)[0];
      dx[i] = gradient;
    }
  }

  Mistake mistake_;
  std::int64_t power_;
  mutable std::int64_t num_runs_ = 0;
  mutable float remembered_ = 0;
};

template <Mistake mistake>
std::unique_ptr<Layer> read(JsonReader& params) {
  if (mistake == Mistake::ignores_unknown_keys)
    for (const JsonMember& member : *params.node().object()) params.has(member.first);
  return std::make_unique<Square>(mistake, params.get_int("power", 2));
}

template <Mistake mistake>
Problems json_problems() {
  const LayerExample example{{{"power", 3}}, {{{3, 5}}}};
  return check_json({"square", read<mistake>, {example}}, example);
}

struct Found {
  Problems contract, gradients, in_place, reads, repeat, threads, allocations;
};

Found check(Mistake mistake) {
  const Square layer(mistake, 2);
  const LayerSubject subject{&layer, {{{3, 5}}}};
  return {check_contract(subject),
          check_gradients(subject),
          check_in_place(subject),
          check_reads(subject),
          check_repeat(subject),
          check_threads(subject),
          check_allocations(subject, num_allocations)};
}

bool mentions(const Problems& problems, const std::string& words) {
  for (const std::string& problem : problems)
    if (problem.find(words) != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("a layer without a mistake passes") {
  const Found found = check(Mistake::none);
  CHECK(found.contract.empty());
  CHECK(found.gradients.empty());
  CHECK(found.in_place.empty());
  CHECK(found.reads.empty());
  CHECK(found.repeat.empty());
  CHECK(found.threads.empty());
  CHECK(found.allocations.empty());
  CHECK(json_problems<Mistake::none>().empty());
}

TEST_CASE("wrong gradients are found") {
  CHECK(mentions(check(Mistake::wrong_gradient).gradients, "dx0["));
  CHECK(mentions(check(Mistake::one_wrong_element).gradients, "dx0[5]"));
  CHECK(mentions(check(Mistake::nan_gradient).gradients, "dx0[5] is nan"));
}

TEST_CASE("an example that is too large for a sharp gradient check is found") {
  const Square layer(Mistake::none, 2);
  const Problems problems = check_gradients({&layer, {{{100, 200}}}});
  CHECK(mentions(problems, "the check of dx0 is too coarse"));
}

TEST_CASE("reading what was not declared is found") {
  CHECK(mentions(check(Mistake::accumulates).reads, "backward_data writes other bits to dx0"));
  CHECK(mentions(check(Mistake::hidden_in_workspace).reads, "backward_data"));
  CHECK(mentions(check(Mistake::remembers_forward).reads, "backward_data"));
  CHECK(mentions(check(Mistake::reads_dy_in_forward).contract, "forward must not read dy0"));
}

TEST_CASE("in-place variants that are wrong are found") {
  CHECK(mentions(check(Mistake::in_place_too_early).in_place, "forward writes other bits to y0"));
  CHECK(mentions(check(Mistake::accumulates).in_place, "backward_data writes other bits to dx0"));
}

TEST_CASE("results that differ from run to run are found") {
  CHECK(mentions(check(Mistake::replay_differs).repeat, "replay gives other bits"));
  CHECK(mentions(check(Mistake::counts_runs).repeat, "the second time"));
  CHECK(mentions(check(Mistake::depends_on_threads).threads, "with 3 threads"));
}

TEST_CASE("stray writes are found") {
  CHECK(mentions(check(Mistake::writes_outside).repeat, "forward writes outside y0"));
  CHECK(mentions(check(Mistake::changes_input).repeat, "forward changes x0, which it only reads"));
}

TEST_CASE("a missing pass is found") {
  CHECK(mentions(check(Mistake::forgets_dx).contract, "backward_data is missing"));
}

TEST_CASE("allocations are found") {
  if (!counts_allocations()) return;  // a sanitizer counts in their place
  const Problems problems = check(Mistake::allocates).allocations;
  CHECK(mentions(problems, "forward allocates 1 times per run with 1 threads"));
  CHECK(mentions(problems, "replay"));
}

TEST_CASE("parameters that are lost, and unknown keys that are accepted, are found") {
  CHECK(mentions(json_problems<Mistake::ignores_unknown_keys>(),
                 "the unknown key \"powerx\" is accepted"));
  CHECK(mentions(json_problems<Mistake::loses_parameter>(), "loses \"power\""));
}

TEST_CASE("values of the gradient check keep away from each other and from 0") {
  for (const std::size_t count : {1, 2, 7, 300}) {
    CAPTURE(count);
    std::vector<float> values = spread_values(count, 3);
    if (count > 2) CHECK(values != spread_values(count, 4));
    std::sort(values.begin(), values.end());
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(std::abs(values[i]) > 0.49 * spacing(count));
      CHECK((i == 0 || values[i] - values[i - 1] > 0.99 * spacing(count)));
      CHECK(std::abs(values[i]) < 2);
    }
  }
}
