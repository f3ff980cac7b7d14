// SPDX-License-Identifier: Apache-2.0
#include "tests/support/random_graph.h"

#include <algorithm>
#include <vector>

#include "engine/json_node.h"
#include "engine/rng.h"

namespace layup::test {
namespace {

struct Open {
  std::string name;
  std::int64_t channels = 0;
  std::int64_t extent = 0;
  bool is_read = false;
};

class Writer {
 public:
  Writer(std::uint64_t seed, int num_layers) : random_(seed), num_layers_(num_layers) {}

  std::string write() {
    tensors_.push_back({"input", 2, 8, false});
    for (int i = 0; i < num_layers_; ++i) add_random();
    add_classifier();
    return Json{{"name", "random"}, {"input", {{"shape", {2, 8, 8}}}}, {"layers", layers_}}.dump();
  }

 private:
  // Mostly the latest tensor; now and then one from long ago.
  std::size_t pick() {
    const auto count = static_cast<std::int64_t>(tensors_.size());
    return static_cast<std::size_t>(random_.chance(70) ? count - 1 : random_.below(count));
  }

  void add(const char* type, const std::vector<std::size_t>& inputs, Json params,
           std::int64_t channels, std::int64_t extent) {
    const std::string name = std::string(type) + std::to_string(layers_.size());
    Json layer = {{"name", name}, {"type", type}};
    Json names = Json::array();
    for (const std::size_t input : inputs) {
      names.push_back(tensors_[input].name);
      tensors_[input].is_read = true;
    }
    layer["inputs"] = names;
    layer.update(params);
    layers_.push_back(layer);
    tensors_.push_back({name, channels, extent, false});
  }

  void add_random() {
    const std::size_t at = pick();
    const Open x = tensors_[at];
    switch (random_.below(10)) {
      case 0:
      case 1: {
        const std::int64_t channels = 1 + random_.below(3);
        add("conv2d", {at}, {{"out_channels", channels}, {"kernel", 3}, {"padding", 1}}, channels,
            x.extent);
        return;
      }
      case 2: add("batch_norm", {at}, Json::object(), x.channels, x.extent); return;
      case 3: add("relu", {at}, Json::object(), x.channels, x.extent); return;
      case 4: add("dropout", {at}, {{"p", 0.25}}, x.channels, x.extent); return;
      case 5:
        if (x.extent < 4) return;
        add(random_.chance(50) ? "max_pool2d" : "avg_pool2d", {at}, {{"kernel", 2}}, x.channels,
            x.extent / 2);
        return;
      case 6:
        if (random_.chance(50))
          add("lrn", {at}, {{"size", 3}, {"alpha", 0.5}}, x.channels, x.extent);
        else
          add(random_.chance(50) ? "sigmoid" : "tanh", {at}, Json::object(), x.channels, x.extent);
        return;
      case 7: add_concat(at); return;
      default: add_sum(at); return;
    }
  }

  // `at` and one or two of the tensors for which `fits`, itself among them.
  template <typename Fits>
  std::vector<std::size_t> pick_with(std::size_t at, const Fits& fits) {
    std::vector<std::size_t> alike;
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (fits(tensors_[i])) alike.push_back(i);
    std::vector<std::size_t> inputs = {at};
    for (std::int64_t i = 1 + random_.below(2); i > 0; --i)
      inputs.push_back(
          alike[static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(alike.size())))]);
    return inputs;
  }

  void add_sum(std::size_t at) {
    const Open x = tensors_[at];
    const auto inputs = pick_with(at, [&](const Open& other) {
      return other.channels == x.channels && other.extent == x.extent;
    });
    add("add", inputs, Json::object(), x.channels, x.extent);
  }

  void add_concat(std::size_t at) {
    constexpr std::int64_t kMostChannels = 8;
    const Open x = tensors_[at];
    if (x.channels > kMostChannels) return;
    const auto inputs = pick_with(at, [&](const Open& other) {
      return other.channels <= kMostChannels && other.extent == x.extent;
    });
    std::int64_t channels = 0;
    for (const std::size_t input : inputs) channels += tensors_[input].channels;
    add("concat", inputs, Json::object(), channels, x.extent);
  }

  // Every loose end becomes a vector of 4 values; their sum goes to the loss.
  void add_classifier() {
    std::vector<std::size_t> ends;
    const std::size_t count = tensors_.size();
    for (std::size_t i = 0; i < count; ++i) {
      if (tensors_[i].is_read) continue;
      add("linear", {i}, {{"out_features", 4}}, 4, 1);
      ends.push_back(tensors_.size() - 1);
    }
    if (ends.size() > 1) add("add", ends, Json::object(), 4, 1);
    add("softmax_cross_entropy", {tensors_.size() - 1}, Json::object(), 1, 1);
  }

  RandomSource random_;
  int num_layers_;
  std::vector<Open> tensors_;
  Json layers_ = Json::array();
};

}  // namespace

std::uint64_t RandomSource::bits() { return mix(mix(seed_) + position_++); }

std::int64_t RandomSource::below(std::int64_t limit) {
  return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(limit));
}

std::string random_network(std::uint64_t seed, int num_layers) {
  return Writer(seed, num_layers).write();
}

Decisions random_decisions(const PhysicalGraph& graph, const ValueUses& uses,
                           RandomSource& random) {
  Decisions decisions;
  decisions.retention.assign(graph.values.size(), Retention::keep);
  const int keep_percent = static_cast<int>(random.below(80));
  const int offload_percent = static_cast<int>(random.below(100));
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const ValueUse& use = uses.of[i];
    if (use.producer < 0 || use.producer >= uses.first_backward) continue;
    if (random.chance(keep_percent)) continue;
    decisions.retention[i] = use.replay < 0 || random.chance(offload_percent)
                                 ? Retention::offload
                                 : Retention::recompute;
  }
  decisions.drop_between_uses = random.chance(50);
  decisions.copy_style = random.chance(50) ? CopyStyle::gated : CopyStyle::layer_by_layer;
  decisions.updates_inside_backward = random.chance(70);
  decisions.in_place = random.chance(80);
  decisions.look_ahead = 1 + static_cast<int>(random.below(3));
  if (random.chance(50))
    for (std::size_t i = 0; i < graph.values.size(); ++i)
      decisions.leaves_as_link.push_back(random.chance(50) ? 1 : 0);
  return decisions;
}

}  // namespace layup::test
