// SPDX-License-Identifier: Apache-2.0
// The training loop: it learns, goes on where it stopped with the same bits, and refuses to go on
// from something else. Checkpoints on the way.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>
#include <span>

#include "apps/checkpoint.h"
#include "apps/trainer.h"
#include "engine/error.h"
#include "engine/safetensors.h"
#include "tests/support/temp_folder.h"

namespace layup {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

// 60 samples in batches of 8: 8 steps per epoch, the last one partial, so that step 7 is in the
// middle of an epoch. Augmentation and dropout go wrong if any random state is lost.
constexpr const char* kConfig = R"({
  "model": {"name": "tiny", "input": {"shape": [1, 12, 12]}, "layers": [
    {"name": "conv1", "type": "conv2d", "out_channels": 4, "kernel": 3, "padding": 1},
    {"name": "bn1", "type": "batch_norm"},
    {"name": "relu1", "type": "relu"},
    {"name": "pool1", "type": "max_pool2d", "kernel": 2},
    {"name": "drop1", "type": "dropout", "p": 0.25},
    {"name": "fc", "type": "linear", "out_features": 5},
    {"name": "loss", "type": "softmax_cross_entropy"}]},
  "data": {"format": "synthetic", "shape": [1, 12, 12], "classes": 5, "samples": 60,
           "augment": [{"type": "pad_crop", "padding": 2}, {"type": "flip"}]},
  "solver": {"type": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4,
             "schedule": {"type": "cosine", "warmup_steps": 3}},
  "train": {"batch": 8, "epochs": 3, "seed": 7}
})";

struct Recorder : TrainObserver {
  void on_step(const StepReport& report) override {
    losses.push_back(report.loss);
    rates.push_back(report.learning_rate);
    if (stop != nullptr && report.step == stop_at) *stop = 15;
  }
  void on_evaluation(const EvaluationReport& report) override { evaluations.push_back(report); }
  void on_message(const std::string& message) override { messages += message + "\n"; }

  std::vector<double> losses, rates;
  std::vector<EvaluationReport> evaluations;
  std::string messages;
  std::atomic<int>* stop = nullptr;
  std::int64_t stop_at = 0;
};

class Workplace {
 public:
  Workplace() {
    std::ofstream(folder / "config.json") << kConfig;
    options.out = folder / "run";
  }
  RunConfig config(const std::vector<Override>& changes = {}) const {
    return read_config(folder / "config.json", changes);
  }
  TrainResult run(const std::vector<Override>& changes = {}) {
    recorder = Recorder{};
    if (!options.out.empty()) fs::create_directories(options.out);
    return train(config(changes), options, recorder);
  }
  std::string hash(std::int64_t steps, const std::vector<Override>& changes = {}) {
    options.steps = steps;
    return run(changes).summary["weights_hash"];
  }
  void resume(std::optional<std::int64_t> steps) {
    options.resume = options.out;
    options.steps = steps;
  }
  // What the run says when it is refused.
  std::string refusal(const std::vector<Override>& changes = {}) {
    try {
      run(changes);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  }
  std::vector<fs::path> checkpoints() const { return list_checkpoints(options.out); }

  TempFolder folder;
  RunOptions options;
  Recorder recorder;
};

bool contains(const std::string& text, const std::string& part) {
  INFO("looking for \"" << part << "\" in: " << text);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

TEST_CASE("trainer: the loss falls and the test set is learnt") {
  Workplace place;
  // Without augmentation: shifted and mirrored, chequered fields are not alike.
  const std::vector<Override> changes = {{"train.epochs", "12"}, {"data.augment", "[]"}};
  const TrainResult result = place.run(changes);
  const std::span<const double> losses(place.recorder.losses);
  REQUIRE(losses.size() == 96);
  CHECK(mean(losses.last(8)) < 0.5 * mean(losses.first(8)));
  REQUIRE(place.recorder.evaluations.size() == 12);
  CHECK(place.recorder.evaluations.back().accuracy > 0.8);
  CHECK(result.signal == 0);
  CHECK(result.summary["steps"] == 96);
  CHECK(result.summary["epochs"] == 12);
  CHECK(result.summary["planned_peak_bytes"] == result.summary["measured_peak_bytes"]);
  CHECK(result.summary["allocations_after_start"] == 0);
  CHECK(result.summary["test_accuracy"] == place.recorder.evaluations.back().accuracy);
  // The weights that were saved are those that were evaluated.
  RunOptions options = place.options;
  options.resume = place.options.out;
  const EvaluationReport again = evaluate(place.config(changes), options);
  CHECK(again.accuracy == place.recorder.evaluations.back().accuracy);
  CHECK(again.loss == place.recorder.evaluations.back().loss);
}

TEST_CASE("trainer: 20 steps straight are 7 and then 13") {
  std::string expected;
  for (const char* loader_threads : {"1", "2"}) {
    CAPTURE(std::string(loader_threads));
    const std::vector<Override> changes = {{"data.loader_threads", loader_threads}};
    Workplace straight;
    const std::string hash = straight.hash(20, changes);
    if (expected.empty()) expected = hash;
    CHECK(hash == expected);
    for (const std::int64_t first : {7, 8, 11}) {
      CAPTURE(first);
      Workplace parts;
      parts.hash(first, changes);
      parts.resume(20);
      CHECK(parts.hash(20, changes) == expected);
      CHECK(parts.recorder.losses.size() == static_cast<std::size_t>(20 - first));
    }
  }
  Workplace other;
  CHECK(other.hash(20, {{"train.seed", "8"}}) != expected);
}

TEST_CASE("trainer: a run may go on under another policy") {
  Workplace straight;
  const std::string expected = straight.hash(10);
  Workplace parts;
  parts.hash(5, {{"memory.policy", "caffe"}});
  parts.resume(10);
  CHECK(parts.hash(10, {{"memory.policy", "none"}}) == expected);
}

TEST_CASE("trainer: a stop is obeyed after the step, and saved") {
  Workplace place;
  std::atomic<int> stop{0};
  place.options.stop = &stop;
  fs::create_directories(place.options.out);
  Recorder recorder;
  recorder.stop = &stop;
  recorder.stop_at = 5;
  const TrainResult result = train(place.config(), place.options, recorder);
  CHECK(result.signal == 15);
  CHECK(result.summary["steps"] == 5);
  REQUIRE(place.checkpoints().size() == 1);
  stop = 0;
  place.resume(20);
  Workplace straight;
  CHECK(place.hash(20) == straight.hash(20));
}

TEST_CASE("trainer: a damaged newest checkpoint is passed over with a warning") {
  Workplace place;
  place.options.steps = 6;
  place.run({{"train.checkpoint", R"({"every_steps": 2, "keep": 5})"}});
  REQUIRE(place.checkpoints().size() == 3);
  const fs::path newest = place.checkpoints().front();
  SUBCASE("cut short") { fs::resize_file(newest, fs::file_size(newest) / 2); }
  SUBCASE("a bit flipped") {
    std::fstream file(newest, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-5, std::ios::end);
    file.put('\x7F');
  }
  SUBCASE("empty") { fs::resize_file(newest, 0); }
  place.resume(20);
  const std::string hash = place.hash(20);
  contains(place.recorder.messages, "warning: passed over a damaged checkpoint");
  contains(place.recorder.messages, newest.filename().string());
  contains(place.recorder.messages, "at step 4");
  Workplace straight;
  CHECK(hash == straight.hash(20));
}

TEST_CASE("trainer: without any good checkpoint there is nothing to go on from") {
  Workplace place;
  place.hash(2);
  for (const fs::path& path : place.checkpoints()) fs::resize_file(path, 10);
  place.resume(20);
  contains(place.refusal(), "no checkpoint in ");
  for (const fs::path& path : place.checkpoints()) fs::remove(path);
  contains(place.refusal(), "there is no checkpoint in ");
}

TEST_CASE("trainer: going on with something else is refused and named") {
  Workplace place;
  place.hash(4);
  place.resume(20);
  contains(place.refusal({{"solver.momentum", "0.8"}}), "was made with the solver");
  contains(place.refusal({{"train.batch", "6"}}), "was made with batch 8, this run has 6");
  contains(place.refusal({{"train.seed", "9"}}), "was made with seed 7, this run has 9");
  contains(place.refusal({{"data.samples", "61"}}),
           "a training set of 60 samples, this run has 61 samples");
  contains(place.refusal({{"model.layers.0.out_channels", "6"}}),
           "\"conv1.weight\" has shape [4, 1, 3, 3], the network needs [6, 1, 3, 3]");
  contains(place.refusal({{"model.layers.0.name", "conv_1"}}),
           "no tensor \"conv_1.weight\", which the network needs; the nearest is \"conv1.weight\"");
  contains(place.refusal({{"solver.momentum", "0.8"}}), "--init");
  // Nothing was changed by all that.
  Workplace straight;
  CHECK(place.hash(20) == straight.hash(20));
}

TEST_CASE("trainer: weights alone are for --init") {
  Workplace place;
  place.hash(4);
  const fs::path checkpoint = place.checkpoints().front();
  const fs::path weights = place.folder / "weights.safetensors";
  {
    const SafetensorsFile file = SafetensorsFile::open(checkpoint);
    std::vector<TensorBlob> blobs;
    for (const TensorBlob& blob : file.tensors())
      if (!blob.name.starts_with("solver/")) blobs.push_back(blob);
    write_safetensors(weights, {}, blobs);
  }
  place.options.out = place.folder / "other";
  place.options.resume = weights;
  contains(place.refusal(), "--init " + weights.string());
  place.options.resume.clear();
  place.options.init = weights;
  const std::string from_weights = place.hash(0);
  place.options.init = checkpoint;
  CHECK(place.hash(0) == from_weights);
  place.options.init.clear();
  CHECK(place.hash(0) != from_weights);
}

TEST_CASE("trainer: the newest checkpoints are kept, and the last good one always") {
  Workplace place;
  place.options.steps = 7;
  place.run({{"train.checkpoint", R"({"every_steps": 1, "keep": 2})"}});
  REQUIRE(place.checkpoints().size() == 2);
  CHECK(place.checkpoints()[0].filename() == "checkpoint-00000007.safetensors");
  CHECK(place.checkpoints()[1].filename() == "checkpoint-00000006.safetensors");

  // A file that only looks newer does not push out the one that was just written.
  Workplace other;
  fs::create_directories(other.options.out);
  std::ofstream(other.options.out / "checkpoint-00000099.safetensors") << "nonsense";
  other.options.steps = 3;
  other.run({{"train.checkpoint", R"({"every_steps": 1, "keep": 1})"}});
  REQUIRE(other.checkpoints().size() == 2);
  other.resume(4);
  other.run();
  contains(other.recorder.messages, "at step 3");
}

TEST_CASE("trainer: a diverging run names a layer and saves nothing bad") {
  Workplace place;
  std::string error;
  try {
    place.run({{"solver.lr", "1e30"},
               {"solver.schedule", R"({"type": "constant"})"},
               {"train.checkpoint", R"({"every_steps": 1})"}});
  } catch (const DivergedError& caught) {
    error = caught.what();
  }
  contains(error, "training diverged at step ");
  contains(error, "Lower the learning rate (it is 1e+30)");
  bool names_a_layer = false;
  for (const char* layer : {"conv1", "bn1", "relu1", "pool1", "drop1", "fc", "loss"})
    names_a_layer = names_a_layer || error.find(std::string("of ") + layer) != std::string::npos ||
                    error.find(std::string("of the gradient of ") + layer) != std::string::npos;
  INFO(error);
  CHECK(names_a_layer);
  for (const fs::path& path : place.checkpoints()) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const TensorBlob& blob : file.tensors()) {
      std::vector<float> values(static_cast<std::size_t>(blob.bytes) / sizeof(float));
      std::memcpy(values.data(), blob.data, static_cast<std::size_t>(blob.bytes));
      CHECK(std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }));
    }
  }
}

TEST_CASE("trainer: --steps changes no schedule, and may pass the epochs") {
  Workplace whole;
  whole.run();
  REQUIRE(whole.recorder.rates.size() == 24);
  Workplace part;
  part.hash(5);
  const std::span<const double> rates(whole.recorder.rates);
  CHECK(std::equal(part.recorder.rates.begin(), part.recorder.rates.end(), rates.begin()));
  Workplace longer;
  longer.hash(30);
  REQUIRE(longer.recorder.rates.size() == 30);
  CHECK(std::equal(rates.begin(), rates.end(), longer.recorder.rates.begin()));
  CHECK(longer.recorder.rates[29] == 0);
}

TEST_CASE("trainer: the log has an event per line, a summary last, and goes on when resumed") {
  Workplace place;
  place.hash(4);
  place.resume(6);
  place.run();
  std::ifstream file(place.options.out / "log.jsonl");
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  std::string events;
  for (const Json& line : lines) {
    if (line["event"] == "step") events += std::to_string(line["step"].get<int>()) + " ";
    if (line["event"] == "summary") events += "summary ";
  }
  CHECK(events == "1 2 3 4 summary 5 6 summary ");
  CHECK(lines.front()["event"] == "start");
  CHECK(lines.back()["event"] == "summary");
}

}  // namespace
}  // namespace layup
