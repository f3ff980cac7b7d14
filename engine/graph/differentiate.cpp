// SPDX-License-Identifier: Apache-2.0
// Graph -> TrainingGraph: differentiate and inference_graph.
#include <algorithm>

#include "engine/error.h"
#include "engine/graph/training_graph.h"

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
    result_.clip_norm = options.clip_norm;
  }

  TrainingGraph build() {
    if (result_.is_training) check_trainable();
    if (!result_.is_training) find_left_out();
    add_inputs();
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) add_forward(id_of(i));
    if (result_.is_training) {
      for (std::size_t i = graph_.nodes.size(); i-- > 0;) add_backward(id_of(i));
      if (updates()) add_updates();
      for (std::size_t i = 0; i < graph_.nodes.size(); ++i)
        result_.replays.push_back(layer_operation(id_of(i), Pass::replay));
    }
    return std::move(result_);
  }

 private:
  struct NodeValues {
    std::vector<ValueId> parameters, parameter_gradients, buffers, saved, carries, metrics;
    std::vector<std::size_t> numbers;  // of the parameters in TrainingGraph::parameters
    bool left_out = false;             // of evaluation
  };

  static NodeId id_of(std::size_t i) { return NodeId{static_cast<std::uint32_t>(i)}; }

  // What evaluation does without: losses of training alone, and layers that only they need.
  void find_left_out() {
    for (std::size_t i = graph_.nodes.size(); i-- > 0;) {
      const Node& node = graph_.nodes[i];
      const std::vector<NodeId>& readers = graph_.tensor(node.output).readers;
      nodes_[i].left_out =
          node.info.training_only ||
          (!readers.empty() && std::all_of(readers.begin(), readers.end(), [&](NodeId reader) {
            return nodes_[index(reader)].left_out;
          }));
    }
  }

  void check_trainable() const {
    bool has_loss = false;
    bool can_evaluate = false;
    for (const Node& node : graph_.nodes) {
      has_loss = has_loss || node.info.is_loss;
      can_evaluate = can_evaluate || (node.info.is_loss && !node.info.training_only);
      if (!node.info.training_error.empty())
        throw GraphError(node.place.describe("layer \"" + node.name + "\" (" + node.type +
                                             "): " + node.info.training_error));
      if (!node.info.is_loss && graph_.tensor(node.output).readers.empty())
        throw GraphError(node.place.describe(
            "the output of layer \"" + node.name + "\" (" + node.type +
            ") is not read by any layer and is not a loss; training needs every branch to end in a "
            "loss"));
      if (node.info.is_loss && !graph_.tensor(node.output).readers.empty())
        throw GraphError(node.place.describe("layer \"" + node.name +
                                             "\" is a loss; no layer may read its output"));
    }
    if (!has_loss)
      throw GraphError(
          graph_.place.describe("the network has no loss; end it with a layer of type "
                                "\"softmax_cross_entropy\""));
    if (!can_evaluate)
      throw GraphError(
          graph_.place.describe("all losses of the network are \"training_only\", so that nothing "
                                "would be left to evaluate; leave that key out of one of them"));
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

  // Where backward writes a parameter's gradient, and what its update will read.
  void add_gradient(Parameter& parameter, NodeValues& own) {
    const TensorSpec tensor{parameter.shape, DType::f32};
    const auto add = [&](const char* suffix, ValueKind kind) {
      return add_value(parameter.name + suffix, tensor, kind);
    };
    if (options_.micro_batch != MicroBatch::whole)
      parameter.gradient = add(":grad sum", ValueKind::gradient_sum);
    if (options_.micro_batch == MicroBatch::first) {
      own.parameter_gradients.push_back(parameter.gradient);
    } else {
      own.parameter_gradients.push_back(add(":grad", ValueKind::parameter_gradient));
      if (options_.micro_batch == MicroBatch::whole)
        parameter.gradient = own.parameter_gradients.back();
    }
    if (!updates()) return;
    for (const std::string& state : options_.solver_states)
      parameter.states.push_back(
          add_value(parameter.name + ":" + state, tensor, ValueKind::solver_state));
  }

  bool updates() const {
    return options_.micro_batch == MicroBatch::whole || options_.micro_batch == MicroBatch::last;
  }

  void add_forward(NodeId id) {
    const Node& node = graph_.node(id);
    NodeValues& own = nodes_[index(id)];
    for (const ParameterSpec& spec : node.info.parameters) {
      Parameter parameter{node.name + "." + spec.name, id, spec.shape, spec.init, {}, {}, {}};
      const TensorSpec tensor{spec.shape, DType::f32};
      parameter.value = add_value(parameter.name, tensor, ValueKind::parameter);
      if (result_.is_training) add_gradient(parameter, own);
      own.parameters.push_back(parameter.value);
      own.numbers.push_back(result_.parameters.size());
      result_.parameters.push_back(std::move(parameter));
    }
    for (const BufferSpec& spec : node.info.buffers) {
      const std::string name = node.name + "." + spec.name;
      own.buffers.push_back(add_value(name, {spec.shape, DType::f32}, ValueKind::buffer));
      result_.buffers.push_back({name, spec.shape, spec.initial, own.buffers.back()});
    }
    if (own.left_out) return;  // what persists is there nevertheless
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
    if (options_.micro_batch == MicroBatch::middle || options_.micro_batch == MicroBatch::last)
      add_to_sums(nodes_[index(id)]);
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

  void add_to_sums(const NodeValues& own) {
    for (std::size_t i = 0; i < own.numbers.size(); ++i) {
      const Parameter& parameter = result_.parameters[own.numbers[i]];
      Operation op;
      op.kind = OpKind::accumulate;
      op.name = parameter.name + " add to sum";
      op.reads = {parameter.gradient, own.parameter_gradients[i]};
      op.writes = {parameter.gradient};
      op.in_place = {{0, 0}};
      result_.operations.push_back(std::move(op));
    }
  }

  void add_clipping() {
    Operation factor;
    factor.kind = OpKind::clip_factor;
    factor.name = "clip factor";
    for (const Parameter& parameter : result_.parameters)
      factor.reads.push_back(parameter.gradient);
    factor.writes = {add_value("clip factor", {{1}, DType::f32}, ValueKind::gradient)};
    for (Parameter& parameter : result_.parameters) {
      Operation scale;
      scale.kind = OpKind::scale;
      scale.name = parameter.name + " clip";
      scale.reads = {parameter.gradient, factor.writes[0]};
      if (options_.micro_batch == MicroBatch::whole)
        parameter.gradient =
            add_value(parameter.name + ":grad clipped", {parameter.shape, DType::f32},
                      ValueKind::parameter_gradient);
      scale.writes = {parameter.gradient};
      scale.in_place = {{0, 0}};
      scales_.push_back(std::move(scale));
    }
    result_.operations.push_back(std::move(factor));
  }

  void add_updates() {
    if (options_.clip_norm > 0) add_clipping();
    std::int32_t number = 0;
    for (const Parameter& parameter : result_.parameters) {
      if (options_.clip_norm > 0)
        result_.operations.push_back(std::move(scales_[static_cast<std::size_t>(number)]));
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
  std::vector<Operation> scales_;  // by parameter
  int num_sums_ = 0;
};

}  // namespace

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

}  // namespace layup
