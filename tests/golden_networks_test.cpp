// SPDX-License-Identifier: Apache-2.0
// Whole networks against PyTorch: five steps of SGD on one batch, gradient norms of the first of
// them, evaluation after them. $LAYUP_GOLDEN_DIR points the test at another folder of the same
// format.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/device/recording_device.h"
#include "engine/error.h"
#include "engine/graph/device_kernels.h"
#include "layers/registry.h"
#include "models/builder.h"
#include "scheduler/session.h"
#include "tests/support/golden.h"
#include "tests/support/tolerances.h"

using namespace layup;

namespace {

constexpr int kThreads = 2;
constexpr int kSteps = 5;

GraphDef build(const JsonNode& test_case) {
  const JsonNode& model = golden_member(test_case, "model");
  const std::string builder = golden_string(model, "builder");
  if (find_model_builder(builder) == nullptr)
    throw ConfigError("model builder '" + builder + "' is not built");
  const auto image = static_cast<std::int64_t>(golden_number(golden_member(test_case, "image")));
  const auto classes =
      static_cast<std::int64_t>(golden_number(golden_member(test_case, "classes")));
  JsonErrors errors("golden model");
  JsonReader reader(model, "", errors);
  const Json network = build_model(reader, {{3, image, image}, classes});
  errors.throw_if_any();
  const JsonNode node = JsonNode::from(network);
  JsonReader network_reader(node, "", errors);
  GraphDef def = read_graph_def(network_reader, builtin_layers());
  errors.throw_if_any();
  return def;
}

SolverConfig build_solver(const JsonNode& test_case) {
  JsonErrors errors("golden solver");
  JsonReader reader(golden_member(test_case, "solver"), "", errors);
  SolverConfig solver = read_solver(reader);
  errors.throw_if_any();
  return solver;
}

SessionRequest request(const JsonNode& test_case, DeviceKind device) {
  SessionRequest request;
  request.device = device;
  request.batch = static_cast<std::int64_t>(golden_number(golden_member(test_case, "batch")));
  request.evaluation_batch = request.batch;
  request.threads = kThreads;
  return request;
}

class CaseRun {
 public:
  CaseRun(const JsonNode& test_case, DeviceKind device)
      : case_(test_case),
        solver_(build_solver(test_case)),
        plan_(plan_session(build(test_case), solver_.rule.get(), request(test_case, device))),
        session_(device_, plan_, solver_.rule.get()) {}

  void run() {
    session_.initialize(0);  // running statistics and solver state; the weights follow
    load_weights();
    load_batch();
    const std::vector<double> expected = golden_numbers(golden_member(case_, "losses"));
    REQUIRE(expected.size() == kSteps);
    for (int step = 0; step < kSteps; ++step) {
      if (step == 0) watch_gradients();
      const StepResult result = session_.run(ProgramId::train, state(step));
      device_.on_launch({});
      device_.clear_calls();
      REQUIRE(result.failed == 0);
      INFO("loss of step " << step << ": " << result.loss << " instead of "
                           << expected[static_cast<std::size_t>(step)]);
      const double difference = std::abs(result.loss - expected[static_cast<std::size_t>(step)]);
      CHECK(difference <=
            (step == 0 ? kGoldenFirstLoss * std::abs(expected[0]) : later_tolerance()));
    }
    check_gradients();
    const double evaluated = session_.run(ProgramId::evaluate, state(kSteps)).loss;
    const double wanted = golden_number(golden_member(case_, "eval_loss_after"));
    INFO("evaluation loss " << evaluated << " instead of " << wanted);
    CHECK(std::abs(evaluated - wanted) <= later_tolerance());
  }

 private:
  StepState state(int step) const {
    StepState state;
    state.step = step;
    state.learning_rate = static_cast<float>(solver_.schedule.at(step));
    state.input_slot = step % kStagingSlots;
    return state;
  }

  // How far rounding alone may move a loss: a few times what float32 moves it in PyTorch.
  double later_tolerance() const {
    const std::vector<double> exact = golden_numbers(golden_member(case_, "losses"));
    const std::vector<double> rounded = golden_numbers(golden_member(case_, "losses_in_float32"));
    double largest = std::abs(golden_number(golden_member(case_, "eval_loss_after")) -
                              golden_number(golden_member(case_, "eval_loss_after_in_float32")));
    for (std::size_t i = 0; i < exact.size(); ++i)
      largest = std::max(largest, std::abs(exact[i] - rounded.at(i)));
    return std::max(kGoldenLaterLoss, 5 * largest);
  }

  // The rule in words stands in the case under "weights"; the name of the last batch norm of a
  // residual block is in parentheses.
  void load_weights() {
    const JsonNode& weights = golden_member(case_, "weights");
    const std::string rule = golden_string(weights, "rule");
    const std::string before_name = "of a residual block (";
    REQUIRE(rule.find(before_name) != std::string::npos);
    const std::size_t begin = rule.find(before_name) + before_name.size();
    const std::string block_end = "." + rule.substr(begin, rule.find(')', begin) - begin);
    auto seed = static_cast<std::uint64_t>(
        golden_number(golden_member(weights, "seeds_in_named_parameters_order_from")));
    const JsonNode::Object& shapes = *golden_member(weights, "shapes").object();
    REQUIRE(shapes.size() == session_.parameters().size());
    for (std::size_t k = 0; k < shapes.size(); ++k, ++seed) {
      const PersistentTensor& parameter = session_.parameters()[k];
      REQUIRE(parameter.name == shapes[k].first);
      REQUIRE(parameter.shape == golden_shape(shapes[k].second));
      const auto rank = parameter.shape.size();
      const std::int64_t fan_in = num_elements(parameter.shape) / parameter.shape[0];
      double scale = 0.25;
      double shift = 1;
      if (rank > 1) {
        scale = std::sqrt(3.0 / static_cast<double>(fan_in));
        shift = 0;
      } else if (parameter.name.ends_with("bias")) {
        scale = 0.1;
        shift = 0;
      } else if (parameter.name.ends_with(block_end)) {
        scale = 0.05;
        shift = 0.2;
      }
      std::vector<float> values(static_cast<std::size_t>(parameter.count()));
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(golden_u(seed, i) * scale + shift);
      session_.write(parameter, values);
    }
  }

  void load_batch() {
    const GoldenTensor images = expand_golden(golden_member(case_, "input"));
    const std::vector<double> labels = golden_numbers(golden_member(case_, "labels"));
    REQUIRE(static_cast<std::int64_t>(labels.size()) == plan_.request.batch);
    for (int slot = 0; slot < kStagingSlots; ++slot) {
      std::ranges::copy(images.values, session_.staged_images(slot));
      for (std::size_t i = 0; i < labels.size(); ++i)
        session_.staged_labels(slot)[i] = static_cast<std::int32_t>(labels[i]);
    }
  }

  // A gradient may be gone after its update, so it is read when that is about to run. Kernels are
  // launched in the order of the program.
  void watch_gradients() {
    const ProgramPlan& program = *plan_.at(ProgramId::train);
    std::vector<const PhysicalOperation*> launches;
    for (const Instruction& instruction : program.program.instructions)
      if (instruction.kind == Instruction::Kind::kernel)
        launches.push_back(
            &operation_of(program.physical, {instruction.source, instruction.operation, {}}));
    norms_.assign(program.physical.parameters.size(), -1);
    device_.on_launch([this, launches, number = std::size_t{0}](const KernelArgs& args) mutable {
      const PhysicalOperation& op = *launches.at(number++);
      if (op.kind != OpKind::update) return;
      const auto parameter = static_cast<std::size_t>(op.parameter);
      double sum = 0;
      const std::int64_t count =  // with padding, which is zero
          num_elements(plan_.at(ProgramId::train)->physical.value(op.reads[0]));
      for (std::int64_t i = 0; i < count; ++i)
        sum += static_cast<double>(args.read(0)[i]) * static_cast<double>(args.read(0)[i]);
      norms_[parameter] = std::sqrt(sum);
    });
  }

  void check_gradients() const {
    const JsonNode& expected = golden_member(case_, "first_step_grad_norms");
    double largest = 0;
    for (const JsonMember& member : *expected.object())
      largest = std::max(largest, golden_number(member.second));
    REQUIRE(expected.object()->size() == norms_.size());
    for (std::size_t k = 0; k < norms_.size(); ++k) {
      const std::string& name = session_.parameters()[k].name;
      const double wanted = golden_number(golden_member(expected, name));
      INFO("gradient norm of " << name << ": " << norms_[k] << " instead of " << wanted);
      REQUIRE(norms_[k] >= 0);
      CHECK(std::abs(norms_[k] - wanted) <=
            kGoldenGradient * wanted + kGoldenGradientZero * largest);
    }
  }

  const JsonNode& case_;
  SolverConfig solver_;
  RecordingDevice device_{true};
  SessionPlan plan_;
  Session session_;
  std::vector<double> norms_;  // by parameter
};

}  // namespace

TEST_CASE("golden: networks train as in PyTorch") {
  for (const JsonNode& test_case : read_golden_cases(golden_dir(), "networks.json")) {
    const std::string name = golden_string(test_case, "name");
    CAPTURE(name);
    for (const DeviceKind device : {DeviceKind::reference, DeviceKind::cpu}) {
      if (!has_device(device)) continue;
      INFO("device " << to_string(device));
      try {
        CaseRun(test_case, device).run();
      } catch (const Error& error) {
        FAIL_CHECK(name << ": " << error.what());
      }
    }
  }
}

TEST_CASE("golden: a builder that is not built is named") {
  const JsonNode unknown = parse_json(R"({"model": {"builder": "perceptron"}})", "case");
  CHECK_THROWS_WITH_AS(build(unknown), "model builder 'perceptron' is not built", ConfigError);
}
