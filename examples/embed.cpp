// SPDX-License-Identifier: Apache-2.0
// Layup as a library: reads a network and a solver, plans the memory of a run, trains in a block of
// memory that this program supplies, and compares what was taken with what was planned. Built and
// run by tests/embed_example.sh against the installed library:
//
//   c++ -std=c++20 examples/embed.cpp $(pkg-config --cflags --libs layup) -o embed
#include <layup.h>

#include <cstdlib>
#include <iostream>
#include <memory>

namespace {

constexpr const char* kNetwork = R"({
  "name": "tiny",
  "input": {"shape": [1, 8, 8]},
  "layers": [
    {"name": "conv1", "type": "conv2d", "out_channels": 4, "kernel": 3, "padding": 1},
    {"name": "relu1", "type": "relu"},
    {"name": "fc", "type": "linear", "out_features": 2},
    {"name": "loss", "type": "softmax_cross_entropy"}
  ]
})";
constexpr const char* kSolver = R"({"type": "sgd", "lr": 0.1, "momentum": 0.9})";
constexpr int kBatch = 16;
constexpr int kPixels = 8 * 8;

layup::GraphDef read_network() {
  const layup::JsonNode json = layup::parse_json(kNetwork, "tiny.json");
  layup::JsonErrors errors("tiny.json");
  layup::JsonReader reader(json, "", errors);
  layup::GraphDef network = layup::read_graph_def(reader, layup::builtin_layers());
  errors.throw_if_any();  // every mistake, with its position
  return network;
}

layup::SolverConfig read_solver() {
  const layup::JsonNode json = layup::parse_json(kSolver, "solver.json");
  layup::JsonErrors errors("solver.json");
  layup::JsonReader reader(json, "", errors);
  layup::SolverConfig solver = layup::read_solver(reader);
  errors.throw_if_any();
  return solver;
}

// Bright above or bright below: two classes that a small network tells apart.
void fill_batch(float* images, std::int32_t* labels) {
  for (int n = 0; n < kBatch; ++n) {
    labels[n] = n % 2;
    for (int i = 0; i < kPixels; ++i) {
      const bool is_upper = i < kPixels / 2;
      const float noise = static_cast<float>((n * 37 + i * 11) % 10) / 20.0F;
      images[n * kPixels + i] = noise + (is_upper == (labels[n] == 0) ? 0.5F : 0.0F);
    }
  }
}

int train() {
  const layup::GraphDef network = read_network();
  const layup::SolverConfig solver = read_solver();
  const layup::LrSchedule schedule = solver.schedule.resolve(1, 30);

  layup::SessionRequest request;
  request.batch = kBatch;
  const layup::SessionPlan plan = layup::plan_session(network, solver.rule.get(), request);
  std::cout << "planned: " << layup::format_bytes(plan.planned_peak_bytes) << '\n';

  const std::unique_ptr<void, decltype(&std::free)> arena(
      std::aligned_alloc(layup::kAlignment, static_cast<std::size_t>(plan.planned_peak_bytes)),
      &std::free);
  const auto device = layup::make_cpu_device(layup::DeviceKind::reference);
  layup::Session session(*device, plan, solver.rule.get(), arena.get());
  session.initialize(/*seed=*/1);

  float first = 0;
  float last = 0;
  for (int step = 0; step < 30; ++step) {
    fill_batch(session.staged_images(0), session.staged_labels(0));
    layup::StepState state;
    state.step = step;
    state.seed = 1;
    state.learning_rate = static_cast<float>(schedule.at(step));
    const layup::StepResult result = session.run(layup::ProgramId::train, state);
    if (result.failed != 0) {
      std::cerr << session.explain_failure(layup::ProgramId::train, state, result.failed) << '\n';
      return 1;
    }
    last = result.loss;
    if (step == 0) first = last;
  }
  std::cout << "loss fell to a tenth: " << (last < first / 10 ? "yes" : "no") << '\n'
            << "weights: " << session.weights_hash() << '\n';
  return 0;
}

}  // namespace

int main() {
  try {
    return train();
  } catch (const layup::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
