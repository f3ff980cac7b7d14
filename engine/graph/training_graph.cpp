// SPDX-License-Identifier: Apache-2.0
#include "engine/graph/training_graph.h"

#include <algorithm>

#include "engine/error.h"

namespace layup {
namespace {

constexpr ValueId kNoValue{0xFFFFFFFFU};

class Builder {
 public:
  Builder(const Graph& graph, const DifferentiateOptions& options, bool training)
      : graph_(graph),
        options_(options),
        output_(graph.tensors.size(), kNoValue),
        gradient_(graph.tensors.size(), kNoValue),
        needs_gradient_(graph.tensors.size(), false),
        nodes_(graph.nodes.size()) {
    result_.batch = graph.batch;
    result_.is_training = training;
  }

  TrainingGraph build() {
    if (result_.is_training) check_trainable();
    add_inputs();
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) add_forward(id_of(i));
    if (result_.is_training) {
      for (std::size_t i = graph_.nodes.size(); i-- > 0;) add_backward(id_of(i));
      add_updates();
      for (std::size_t i = 0; i < graph_.nodes.size(); ++i)
        result_.replays.push_back(layer_operation(id_of(i), Pass::replay));
    }
    return std::move(result_);
  }

 private:
  struct NodeValues {
    std::vector<ValueId> parameters, parameter_gradients, buffers, saved, carries, metrics;
  };

  static NodeId id_of(std::size_t i) { return NodeId{static_cast<std::uint32_t>(i)}; }

  void check_trainable() const {
    bool has_loss = false;
    for (const Node& node : graph_.nodes) {
      has_loss = has_loss || node.info.is_loss;
      if (!node.info.training_error.empty())
        throw GraphError("layer \"" + node.name + "\" (" + node.type +
                         "): " + node.info.training_error);
      if (!node.info.is_loss && graph_.tensor(node.output).readers.empty())
        throw GraphError("the output of layer \"" + node.name + "\" (" + node.type +
                         ") is not read by any layer and is not a loss; training needs every "
                         "branch to end in a loss");
      if (node.info.is_loss && !graph_.tensor(node.output).readers.empty())
        throw GraphError("layer \"" + node.name + "\" is a loss; no layer may read its output");
    }
    if (!has_loss)
      throw GraphError(
          "the network has no loss; end it with a layer of type "
          "\"softmax_cross_entropy\"");
  }

  ValueId add_value(std::string name, TensorSpec spec, ValueKind kind) {
    result_.values.push_back({std::move(name), std::move(spec), kind});
    return ValueId{static_cast<std::uint32_t>(result_.values.size() - 1)};
  }

  void add_inputs() {
    const TensorSpec& input = graph_.tensor(graph_.input).spec;
    result_.staging_batch = std::max(options_.staging_batch, graph_.batch);
    Shape staged = input.shape;
    staged[0] = checked_multiply(kStagingSlots, result_.staging_batch);
    result_.staged_images = add_value("staging:images", {staged, DType::f32}, ValueKind::staging);
    result_.staged_labels =
        add_value("staging:labels", {{staged[0]}, DType::i32}, ValueKind::staging);
    result_.input = add_value("input", input, ValueKind::input);
    result_.labels = add_value("labels", {{graph_.batch}, DType::i32}, ValueKind::input);
    output_[index(graph_.input)] = result_.input;
    add_load("load images", result_.staged_images, result_.input);
    add_load("load labels", result_.staged_labels, result_.labels);
  }

  void add_load(const char* name, ValueId from, ValueId to) {
    Operation op;
    op.kind = OpKind::load;
    op.name = name;
    op.reads = {from};
    op.writes = {to};
    result_.operations.push_back(std::move(op));
  }

  void add_forward(NodeId id) {
    const Node& node = graph_.node(id);
    NodeValues& own = nodes_[index(id)];
    for (const ParameterSpec& spec : node.info.parameters) {
      Parameter parameter{node.name + "." + spec.name, id, spec.shape, spec.init, {}, {}, {}};
      const TensorSpec tensor{spec.shape, DType::f32};
      parameter.value = add_value(parameter.name, tensor, ValueKind::parameter);
      if (result_.is_training) {
        parameter.gradient =
            add_value(parameter.name + ":grad", tensor, ValueKind::parameter_gradient);
        for (const std::string& state : options_.solver_states)
          parameter.states.push_back(
              add_value(parameter.name + ":" + state, tensor, ValueKind::solver_state));
        own.parameter_gradients.push_back(parameter.gradient);
      }
      own.parameters.push_back(parameter.value);
      result_.parameters.push_back(std::move(parameter));
    }
    for (const BufferSpec& spec : node.info.buffers) {
      const std::string name = node.name + "." + spec.name;
      own.buffers.push_back(add_value(name, {spec.shape, DType::f32}, ValueKind::buffer));
      result_.buffers.push_back({name, spec.shape, spec.initial, own.buffers.back()});
    }
    if (result_.is_training) {
      for (std::size_t i = 0; i < node.info.saved.size(); ++i)
        own.saved.push_back(add_value(node.name + ":saved" + std::to_string(i), node.info.saved[i],
                                      ValueKind::saved));
      for (std::size_t i = 0; i < node.info.carries.size(); ++i)
        own.carries.push_back(add_value(node.name + ":carry" + std::to_string(i),
                                        node.info.carries[i], ValueKind::carry));
    }
    for (const std::string& name : node.info.metrics) {
      own.metrics.push_back(
          add_value(node.name + ":" + name, {{1}, DType::f32}, ValueKind::metric));
      if (name == "correct" && !result_.correct) result_.correct = own.metrics.back();
    }
    output_[index(node.output)] =
        add_value(node.name + ":y", node.info.output,
                  node.info.is_loss ? ValueKind::metric : ValueKind::activation);
    if (node.info.is_loss) result_.losses.push_back(output_[index(node.output)]);
    bool needs_gradient = !node.info.parameters.empty();
    for (const TensorId input : node.inputs)
      needs_gradient = needs_gradient || needs_gradient_[index(input)];
    needs_gradient_[index(node.output)] = needs_gradient;
    result_.operations.push_back(
        layer_operation(id, result_.is_training ? Pass::forward : Pass::evaluate));
  }

  ValueId resolve(NodeId id, Slot slot, const std::vector<ValueId>& dx) const {
    const Node& node = graph_.node(id);
    const NodeValues& own = nodes_[index(id)];
    const auto at = static_cast<std::size_t>(slot.index);
    switch (slot.role) {
      case Role::x: return output_[index(node.inputs.at(at))];
      case Role::y: return output_[index(node.output)];
      case Role::dx: return dx.at(at);
      case Role::dy: return gradient_[index(node.output)];
      case Role::parameter: return own.parameters.at(at);
      case Role::parameter_gradient: return own.parameter_gradients.at(at);
      case Role::buffer: return own.buffers.at(at);
      case Role::saved: return own.saved.at(at);
      case Role::carry: return own.carries.at(at);
      case Role::labels: return result_.labels;
      case Role::metric: return own.metrics.at(at);
    }
    return kNoValue;
  }

  Operation layer_operation(NodeId id, Pass pass, const std::vector<ValueId>& dx = {}) const {
    const Node& node = graph_.node(id);
    const PassSpec& spec = node.info.pass(pass);
    Operation op;
    op.kind = OpKind::layer;
    op.name = node.name + " " + to_string(pass);
    op.node = id;
    op.pass = pass;
    for (const Slot& slot : spec.reads) op.reads.push_back(resolve(id, slot, dx));
    for (const Slot& slot : spec.writes) op.writes.push_back(resolve(id, slot, dx));
    op.in_place = spec.in_place;
    return op;
  }

  // One more gradient for the tensor: the first is its gradient, later ones are added.
  void contribute(TensorId tensor, ValueId gradient) {
    ValueId& total = gradient_[index(tensor)];
    if (total == kNoValue) {
      total = gradient;
      return;
    }
    const std::string& name = graph_.tensor(tensor).name;
    Operation op;
    op.kind = OpKind::accumulate;
    op.name = name + " accumulate";
    op.reads = {total, gradient};
    const int number = ++num_sums_;
    op.writes = {add_value(name + ":grad sum" + std::to_string(number), graph_.tensor(tensor).spec,
                           ValueKind::gradient)};
    op.in_place = {{0, 0}, {1, 0}};
    total = op.writes[0];
    result_.operations.push_back(std::move(op));
  }

  void add_backward(NodeId id) {
    const Node& node = graph_.node(id);
    if (!needs_gradient_[index(node.output)]) return;
    const ValueId dy = gradient_[index(node.output)];
    LAYUP_ASSERT(node.info.is_loss || dy != kNoValue);
    if (node.info.pass(Pass::backward_params).exists())
      result_.operations.push_back(layer_operation(id, Pass::backward_params));
    bool wanted = false;
    for (const TensorId input : node.inputs) wanted = wanted || needs_gradient_[index(input)];
    if (!wanted) return;
    std::vector<ValueId> dx;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.info.passes_gradient_through) {
        dx.push_back(dy);
        continue;
      }
      dx.push_back(add_value(node.name + ":dx" + std::to_string(i),
                             graph_.tensor(node.inputs[i]).spec, ValueKind::gradient));
    }
    if (!node.info.passes_gradient_through)
      result_.operations.push_back(layer_operation(id, Pass::backward_data, dx));
    for (std::size_t i = 0; i < node.inputs.size(); ++i)
      if (needs_gradient_[index(node.inputs[i])]) contribute(node.inputs[i], dx[i]);
  }

  void add_updates() {
    std::int32_t number = 0;
    for (const Parameter& parameter : result_.parameters) {
      Operation op;
      op.kind = OpKind::update;
      op.name = parameter.name + " update";
      op.node = parameter.node;
      op.parameter = number++;
      op.reads = {parameter.gradient};
      op.writes = {parameter.value};
      op.writes.insert(op.writes.end(), parameter.states.begin(), parameter.states.end());
      result_.operations.push_back(std::move(op));
    }
  }

  const Graph& graph_;
  const DifferentiateOptions& options_;
  TrainingGraph result_;
  std::vector<ValueId> output_;    // by tensor
  std::vector<ValueId> gradient_;  // by tensor: what has been added up so far
  std::vector<bool> needs_gradient_;
  std::vector<NodeValues> nodes_;
  int num_sums_ = 0;
};

}  // namespace

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
    case OpKind::update: return "update";
    case OpKind::reorder: return "reorder";
  }
  return "?";
}

TrainingGraph differentiate(const Graph& graph, const DifferentiateOptions& options) {
  TrainingGraph result = Builder(graph, options, true).build();
  validate_training_graph(result);
  return result;
}

TrainingGraph inference_graph(const Graph& graph, const DifferentiateOptions& options) {
  TrainingGraph result = Builder(graph, options, false).build();
  validate_training_graph(result);
  return result;
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
  for (std::size_t i = 0; graph.is_training && i < updates.size(); ++i)
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
