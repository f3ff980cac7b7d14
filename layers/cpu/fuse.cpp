// SPDX-License-Identifier: Apache-2.0
#include "layers/cpu/fuse.h"

#include <algorithm>
#include <optional>

#include "engine/error.h"

namespace layup::cpu {
namespace {

class Fuser {
 public:
  Fuser(const Graph& graph, const TrainingGraph& training) : graph_(graph) {
    copy(training.operations, result_.operations);
    copy(training.replays, result_.replays);
  }

  FusedOperations run() {
    for (const Node& relu : graph_.nodes) {
      if (relu.type != "relu") continue;
      const std::optional<NodeId> before = only_reader_of(relu.inputs[0]);
      if (!before) continue;
      const Node& producer = graph_.node(*before);
      if (is_batch_norm(producer)) fuse_batch_norm(*before, id_of(relu));
      if (producer.type == "add" && relu.info.pass(Pass::forward).writes.size() == 1)
        fuse_add(*before, id_of(relu));
    }
    for (const Node& node : graph_.nodes)
      if (is_batch_norm(node)) join_gradients(id_of(node));
    compact(result_.operations);
    compact(result_.replays);
    return std::move(result_);
  }

 private:
  static void copy(const std::vector<Operation>& from, std::vector<PhysicalOperation>& to) {
    for (const Operation& op : from) static_cast<Operation&>(to.emplace_back()) = op;
  }
  NodeId id_of(const Node& node) const {
    return NodeId{static_cast<std::uint32_t>(&node - graph_.nodes.data())};
  }
  static bool is_batch_norm(const Node& node) {
    return node.type == "batch_norm" && node.info.output.shape.size() == 4;
  }
  // The layer that makes the tensor, if it is read once.
  std::optional<NodeId> only_reader_of(TensorId tensor) const {
    const Tensor& found = graph_.tensor(tensor);
    return found.readers.size() == 1 ? found.producer : std::nullopt;
  }

  static PhysicalOperation* find(std::vector<PhysicalOperation>& list, NodeId node, Pass pass) {
    for (PhysicalOperation& op : list)
      if (op.kind == OpKind::layer && op.node == node && op.pass == pass && !op.writes.empty())
        return &op;
    return nullptr;
  }
  static void remove(PhysicalOperation* op) {
    if (op != nullptr) op->writes.clear();
  }
  static void compact(std::vector<PhysicalOperation>& list) {
    std::erase_if(list, [](const PhysicalOperation& op) { return op.writes.empty(); });
  }

  // Calls body(list, pass) for every pass that makes y.
  template <typename Body>
  void for_passes(const Body& body) {
    for (const Pass pass : {Pass::forward, Pass::evaluate}) body(result_.operations, pass);
    body(result_.replays, Pass::replay);
  }

  static ValueId upstream_of(const Node& node, const PhysicalOperation& backward) {
    const std::vector<Slot>& reads = node.info.pass(Pass::backward_data).reads;
    const auto found = std::find(reads.begin(), reads.end(), Slot{Role::dy, 0});
    LAYUP_ASSERT(found != reads.end());
    return backward.reads[static_cast<std::size_t>(found - reads.begin())];
  }

  void fuse_batch_norm(NodeId norm, NodeId relu) {
    for_passes([&](std::vector<PhysicalOperation>& list, Pass pass) {
      PhysicalOperation* first = find(list, norm, pass);
      PhysicalOperation* second = find(list, relu, pass);
      if (first == nullptr || second == nullptr) return;
      first->writes[0] = second->writes[0];
      mark(*first, Fusion::relu, {relu});
      remove(second);
    });
    PhysicalOperation* backward = find(result_.operations, relu, Pass::backward_data);
    if (backward == nullptr) return;
    const ValueId dy = upstream_of(graph_.node(relu), *backward);
    const PhysicalOperation* forward = find(result_.operations, norm, Pass::forward);
    const std::vector<ValueId> parameters = {forward->reads[1], forward->reads[2]};
    for (const Pass pass : {Pass::backward_params, Pass::backward_data}) {
      PhysicalOperation* op = find(result_.operations, norm, pass);
      if (op == nullptr) continue;
      op->reads[1] = dy;
      const int known = pass == Pass::backward_data ? 1 : 0;  // it reads weight already
      op->reads.insert(op->reads.begin() + 2 + known, parameters.begin() + known, parameters.end());
      mark(*op, Fusion::relu, {});
    }
    remove(backward);
  }

  void fuse_add(NodeId add, NodeId relu) {
    std::optional<NodeId> norm;  // the last one of the inputs: its operands are the warmest
    std::size_t position = 0;
    const Node& sum = graph_.node(add);
    for (std::size_t i = 0; i < sum.inputs.size() && sum.inputs.size() == 2; ++i) {
      const std::optional<NodeId> producer = only_reader_of(sum.inputs[i]);
      if (!producer || !is_batch_norm(graph_.node(*producer))) continue;
      if (norm && index(*norm) > index(*producer)) continue;
      norm = producer;
      position = i;
    }
    for_passes([&](std::vector<PhysicalOperation>& list, Pass pass) {
      PhysicalOperation* sum_op = find(list, add, pass);
      PhysicalOperation* relu_op = find(list, relu, pass);
      if (sum_op == nullptr || relu_op == nullptr) return;
      PhysicalOperation* norm_op = norm ? find(list, *norm, pass) : nullptr;
      if (norm_op != nullptr) {  // takes the place of the add, where both operands are there
        const ValueId other = sum_op->reads[1 - position];
        *sum_op = *norm_op;
        remove(norm_op);
        sum_op->reads.push_back(other);
        sum_op->in_place.push_back({static_cast<int>(sum_op->reads.size()) - 1, 0});
        mark(*sum_op, Fusion::add_relu, {add, relu});
      } else {
        mark(*sum_op, Fusion::relu, {relu});
      }
      sum_op->writes[0] = relu_op->writes[0];
      remove(relu_op);
    });
  }

  // One operation for both kinds of gradients, in the place of the first: dx joins what it writes.
  void join_gradients(NodeId norm) {
    PhysicalOperation* params = find(result_.operations, norm, Pass::backward_params);
    PhysicalOperation* data = find(result_.operations, norm, Pass::backward_data);
    if (params == nullptr || data == nullptr) return;
    data->reads.pop_back();  // the carry
    params->writes.pop_back();
    data->writes.insert(data->writes.end(), params->writes.begin(), params->writes.end());
    data->name =
        graph_.node(norm).name + " backward" + (data->fusion == Fusion::relu ? " with relu" : "");
    data->all_gradients = true;
    std::swap(*params, *data);
    remove(data);
  }

  static void mark(PhysicalOperation& op, Fusion fusion, std::vector<NodeId> others) {
    op.fusion = fusion;
    op.fused = std::move(others);
    op.name += fusion == Fusion::relu ? " with relu" : " with add and relu";
  }

  const Graph& graph_;
  FusedOperations result_;
};

}  // namespace

FusedOperations fuse(const Graph& graph, const TrainingGraph& training) {
  return Fuser(graph, training).run();
}

}  // namespace layup::cpu
