// SPDX-License-Identifier: Apache-2.0
#include "engine/graph/training_graph.h"

#include <algorithm>

#include "engine/error.h"

namespace layup {

const char* to_string(ValueKind kind) {
  switch (kind) {
    case ValueKind::input: return "input";
    case ValueKind::activation: return "activation";
    case ValueKind::saved: return "saved";
    case ValueKind::carry: return "carry";
    case ValueKind::gradient: return "gradient";
    case ValueKind::parameter_gradient: return "parameter_gradient";
    case ValueKind::parameter: return "parameter";
    case ValueKind::buffer: return "buffer";
    case ValueKind::solver_state: return "solver_state";
    case ValueKind::gradient_sum: return "gradient_sum";
    case ValueKind::metric: return "metric";
    case ValueKind::staging: return "staging";
  }
  return "?";
}

const char* to_string(OpKind kind) {
  switch (kind) {
    case OpKind::load: return "load";
    case OpKind::layer: return "layer";
    case OpKind::accumulate: return "accumulate";
    case OpKind::clip_factor: return "clip_factor";
    case OpKind::scale: return "scale";
    case OpKind::update: return "update";
    case OpKind::reorder: return "reorder";
  }
  return "?";
}

void validate_training_graph(const TrainingGraph& graph) {
  const auto require = [](bool good, const std::string& what) {
    if (!good) throw GraphError("invalid training graph: " + what);
  };
  std::vector<char> written(graph.values.size(), 0);
  std::vector<int> updates(graph.parameters.size(), 0);
  for (std::size_t i = 0; i < graph.values.size(); ++i)
    written[i] = is_persistent(graph.values[i].kind) ? 1 : 0;
  for (const Operation& op : graph.operations) {
    for (const ValueId value : op.reads) {
      require(index(value) < graph.values.size(), op.name + " reads a value that is not there");
      require(written[index(value)] != 0,
              op.name + " reads " + graph.value(value).name + " before it is written");
    }
    for (const ValueId value : op.writes) {
      require(index(value) < graph.values.size(), op.name + " writes a value that is not there");
      require(is_persistent(graph.value(value).kind) || written[index(value)] == 0,
              op.name + " writes " + graph.value(value).name + " for the second time");
      written[index(value)] = 1;
    }
    for (const InPlace& pair : op.in_place) {
      const Value& over = graph.value(op.reads.at(static_cast<std::size_t>(pair.read)));
      const Value& result = graph.value(op.writes.at(static_cast<std::size_t>(pair.write)));
      require(num_bytes(over.spec) == num_bytes(result.spec),
              op.name + ": " + result.name + " cannot take the place of " + over.name);
    }
    if (op.kind == OpKind::update) {
      const auto number = static_cast<std::size_t>(op.parameter);
      require(number < updates.size() && op.reads.at(0) == graph.parameters[number].gradient,
              op.name + " does not read the gradient of its parameter");
      ++updates[number];
    }
  }
  // All parameters, or (before the last micro-batch of a step) none.
  const bool has_updates = std::any_of(updates.begin(), updates.end(), [](int n) { return n > 0; });
  for (std::size_t i = 0; has_updates && i < updates.size(); ++i)
    require(updates[i] == 1, graph.parameters[i].name + " is updated " +
                                 std::to_string(updates[i]) + " times in a step");
}

std::string to_string(const TrainingGraph& graph) {
  std::string text;
  const auto list = [&](const std::vector<ValueId>& values) {
    std::string names;
    for (const ValueId value : values)
      names += (names.empty() ? "" : ", ") + graph.value(value).name;
    return names;
  };
  for (const Operation& op : graph.operations)
    text += op.name + ": " + list(op.reads) + " -> " + list(op.writes) + "\n";
  return text;
}

}  // namespace layup
