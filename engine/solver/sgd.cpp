// SPDX-License-Identifier: Apache-2.0
// Stochastic gradient descent with momentum, as PyTorch's SGD computes it (dampening 0):
//
//   g' = g + weight_decay * p
//   v  = momentum * v + g'                    (v = 0 before step 0; no v when momentum is 0)
//   p -= lr * v,   nesterov:  p -= lr * (g' + momentum * v)
//
// Source: Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum in
// deep learning", ICML 2013. Differs as PyTorch does: the rate multiplies the step and not the
// velocity, so that a change of rate acts at once.
// Errors: ConfigError for momentum outside [0, 1), weight_decay < 0, nesterov without momentum.
#include "engine/solver/solver.h"
#include "engine/solver/update.h"

namespace layup {
namespace {

struct SgdRule {
  float momentum = 0;
  float weight_decay = 0;
};

// The rules are told apart at compile time, so that each loop is one straight, vectorised pass.
template <bool kMomentum, bool kNesterov>
void update(const SgdRule& rule, float lr, const float* __restrict g, float* __restrict p,
            float* __restrict v, std::int64_t begin, std::int64_t end) {
  const float mu = rule.momentum;
  const float decay = rule.weight_decay;
  for (std::int64_t i = begin; i < end; ++i) {
    const float step = g[i] + decay * p[i];
    if constexpr (kMomentum) {
      v[i] = mu * v[i] + step;
      p[i] -= lr * (kNesterov ? step + mu * v[i] : v[i]);
    } else {
      p[i] -= lr * step;
    }
  }
}

using UpdateFunction = decltype(&update<false, false>);

class Sgd : public Solver {
 public:
  Sgd(double momentum, double weight_decay, bool nesterov)
      : momentum_(momentum), weight_decay_(weight_decay), nesterov_(nesterov) {}

  std::vector<std::string> state_names() const override {
    return momentum_ > 0 ? std::vector<std::string>{"momentum"} : std::vector<std::string>{};
  }

  Kernel make_update(std::int64_t count, std::int32_t parameter_index, int threads) const override {
    const SgdRule rule = {static_cast<float>(momentum_), static_cast<float>(weight_decay_)};
    const bool has_momentum = momentum_ > 0;
    const UpdateFunction function = !has_momentum ? &update<false, false>
                                    : nesterov_   ? &update<true, true>
                                                  : &update<true, false>;
    const int used_threads = update_threads(count, threads);
    return [=](const KernelArgs& args) {
      const auto* gradient = args.read(0);
      if (!may_update(*args.state, gradient, count, parameter_index, used_threads)) return;
      auto* parameter = args.write(0);
      auto* velocity = has_momentum ? args.write(1) : nullptr;
      const float lr = args.state->learning_rate;
      parallel_for(used_threads, count, [=](std::int64_t begin, std::int64_t end) {
        function(rule, lr, gradient, parameter, velocity, begin, end);
      });
    };
  }

  Json params() const override {
    return {{"type", "sgd"},
            {"momentum", momentum_},
            {"nesterov", nesterov_},
            {"weight_decay", weight_decay_}};
  }

 private:
  double momentum_;
  double weight_decay_;
  bool nesterov_;
};

std::unique_ptr<Solver> read_sgd(JsonReader& solver) {
  const double momentum =
      solver.get_number("momentum", 0, {.min = 0, .max = 1, .max_excluded = true});
  const double weight_decay = solver.get_number("weight_decay", 0, {.min = 0});
  const bool nesterov = solver.get_bool("nesterov", false);
  if (nesterov && momentum == 0)
    solver.fail("nesterov", "Nesterov's rule needs a momentum above 0");
  return std::make_unique<Sgd>(momentum, weight_decay, nesterov);
}

}  // namespace

SolverType sgd_solver() { return {"sgd", read_sgd}; }

}  // namespace layup
