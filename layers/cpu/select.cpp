// SPDX-License-Identifier: Apache-2.0
// select_kernels of the cpu device: fusions, then one layout per value (bf16 is a part of it),
// chosen by the operation that writes it. An operation that wants an operand in another layout
// reads a reordered copy, a value and an operation like all others. A parameter lies as its layer's
// forward pass reads it.
#include <algorithm>
#include <map>

#include "engine/error.h"
#include "engine/graph/device_kernels.h"
#include "layers/cpu/add.h"
#include "layers/cpu/cpu_layer.h"
#include "layers/cpu/fuse.h"
#include "layers/cpu/onednn.h"

namespace layup::cpu {
namespace {

std::vector<Layout> layouts_of(const PhysicalGraph& physical, const std::vector<ValueId>& values) {
  std::vector<Layout> layouts;
  for (const ValueId value : values) layouts.push_back(physical.value(value).layout);
  return layouts;
}

// The layouts of an accumulate or another operation on elements: that of the first operand which is
// not plain.
Layout common_layout(const std::vector<Layout>& layouts) {
  for (const Layout& layout : layouts)
    if (!layout.is_plain()) return layout;
  return {};
}

class Selector {
 public:
  Selector(const Graph& graph, const TrainingGraph& training, int threads,
           const KernelOptions& options)
      : graph_(graph),
        physical_(physical_frame(graph, training, DeviceKind::cpu, threads, options)) {
    place_parameters();
    const FusedOperations fused = fuse(graph, training);
    for (const PhysicalOperation& op : fused.operations) add(op);
    for (const PhysicalOperation& op : fused.replays) {
      PhysicalOperation replay = op;
      std::vector<Move> moves;
      choose(replay, moves);
      LAYUP_ASSERT(moves.empty());  // a replay writes nothing that persists
      finish(replay);
      physical_.replays.push_back(std::move(replay));
    }
    if (!training.is_training) return;
    for (const PhysicalOperation& op : physical_.operations)
      if (op.kind == OpKind::load || (op.kind == OpKind::reorder && op.pass == Pass::forward))
        physical_.replays.push_back(op);
  }

  PhysicalGraph take() { return std::move(physical_); }

 private:
  struct Move {
    ValueId from, to;
  };

  PhysicalValue& value(ValueId id) { return physical_.values[index(id)]; }

  void set_layout(ValueId id, const Layout& layout) {
    PhysicalValue& placed = value(id);
    placed.layout = layout;
    const std::int64_t count = num_elements(layout, placed.spec.shape);
    placed.bytes =
        round_up(checked_multiply(count, element_bytes(layout, placed.spec.dtype)), kAlignment);
  }

  void place_parameters() {
    std::map<NodeId, int> seen;
    for (const Parameter& parameter : physical_.parameters) {
      const Node& node = graph_.node(parameter.node);
      const int i = seen[parameter.node]++;
      const CpuLayer* layer = find_cpu_layer(node.type);
      if (layer == nullptr || layer->parameter_layout == nullptr) continue;
      const Layout layout = layer->parameter_layout(node, graph_.input_specs(node), i);
      set_layout(parameter.value, layout);
      if (physical_.is_training) set_layout(parameter.gradient, layout);  // it may be a sum
      for (const ValueId state : parameter.states) set_layout(state, layout);
    }
  }

  Choice choice_of(const PhysicalOperation& op, const std::vector<Layout>& reads) const {
    if (op.kind == OpKind::layer) {
      const Node& node = graph_.node(op.node);
      const std::vector<TensorSpec> inputs = graph_.input_specs(node);
      if (const CpuLayer* layer = find_cpu_layer(node.type)) {
        Choice choice = layer->choose({node,
                                       inputs,
                                       op.pass,
                                       op.fusion,
                                       op.all_gradients,
                                       physical_.threads,
                                       physical_.options,
                                       reads,
                                       {}});
        if (!choice.kernel.empty()) return choice;
      }
      LAYUP_ASSERT(op.fusion == Fusion::none && !op.all_gradients);
    }
    Choice choice{"reference", std::vector<Layout>(op.reads.size()),
                  std::vector<Layout>(op.writes.size()), 0};
    if (op.kind == OpKind::layer) {
      choice.workspace_bytes = reference_workspace_bytes(graph_, physical_, op);
      return choice;
    }
    if (op.kind == OpKind::accumulate) {
      choice.kernel = "vector";
      const Layout layout = common_layout(reads);
      choice.reads.assign(op.reads.size(), layout);
      choice.writes.assign(op.writes.size(), layout);
    }
    if (op.kind == OpKind::update || is_persistent(physical_.value(op.writes[0]).kind)) {
      const Layout layout = physical_.value(op.writes[0]).layout;
      choice.reads.assign(op.reads.size(), layout);
      choice.writes.assign(op.writes.size(), layout);
    }
    if (op.kind == OpKind::scale) choice.reads[0] = choice.writes[0] = reads[0];
    if (op.kind == OpKind::clip_factor) choice.reads = reads;
    return choice;
  }

  // Puts reordered operands and the layouts of results in place. A persistent result in another
  // layout is written to a value of its own and `moves` says where that has to go.
  void choose(PhysicalOperation& op, std::vector<Move>& moves) {
    const Choice choice = choice_of(op, layouts_of(physical_, op.reads));
    op.kernel = choice.kernel;
    op.workspace_bytes = round_up(choice.workspace_bytes, kAlignment);
    LAYUP_ASSERT(choice.reads.size() == op.reads.size() &&
                 choice.writes.size() == op.writes.size());
    for (std::size_t i = 0; i < op.reads.size(); ++i)
      op.reads[i] = converted(op.reads[i], choice.reads[i], op.pass);
    for (std::size_t i = 0; i < op.writes.size(); ++i) {
      if (!is_persistent(value(op.writes[i]).kind)) {
        set_layout(op.writes[i], choice.writes[i]);
      } else if (value(op.writes[i]).layout != choice.writes[i]) {
        const ValueId made = add_copy(op.writes[i], choice.writes[i], ":as written");
        moves.push_back({made, op.writes[i]});
        op.writes[i] = made;
      }
    }
    std::erase_if(op.in_place, [&](const InPlace& pair) {
      const PhysicalValue& from = value(op.reads[static_cast<std::size_t>(pair.read)]);
      const PhysicalValue& to = value(op.writes[static_cast<std::size_t>(pair.write)]);
      return from.layout != to.layout || from.bytes != to.bytes;
    });
  }

  void add(PhysicalOperation op) {
    std::vector<Move> moves;
    choose(op, moves);
    finish(op);
    const Pass pass = op.pass;
    physical_.operations.push_back(std::move(op));
    for (const Move& move : moves) add_reorder(move.from, move.to, pass);
  }

  void finish(PhysicalOperation& op) const {
    describe_costs(graph_, physical_, op);
    op.cost_key += " " + op.kernel;
    if (op.fusion != Fusion::none) op.cost_key += op.fusion == Fusion::relu ? "+relu" : "+add+relu";
    if (op.all_gradients) op.cost_key += "+params";
    for (const auto* operands : {&op.reads, &op.writes})
      for (const ValueId id : *operands)
        if (!physical_.value(id).layout.is_plain())
          op.cost_key += "; " + to_string(physical_.value(id).layout);
  }

  // The value itself, or its copy in the layout (made now unless there is one).
  ValueId converted(ValueId id, const Layout& layout, Pass pass) {
    if (value(id).layout == layout) return id;
    std::vector<ValueId>& copies = copies_[id];
    for (const ValueId copy : copies)
      if (value(copy).layout == layout) return copy;
    const ValueId made = add_copy(id, layout, ":reordered" + std::to_string(copies.size()));
    copies.push_back(made);
    add_reorder(id, made, pass == Pass::replay ? Pass::forward : pass);
    return made;
  }

  ValueId add_copy(ValueId id, const Layout& layout, const std::string& suffix) {
    PhysicalValue copy = value(id);
    copy.name += suffix;
    if (is_persistent(copy.kind)) copy.kind = ValueKind::carry;
    physical_.values.push_back(std::move(copy));
    const ValueId made{static_cast<std::uint32_t>(physical_.values.size() - 1)};
    set_layout(made, layout);
    return made;
  }

  void add_reorder(ValueId from, ValueId to, Pass pass) {
    PhysicalOperation op;
    op.kind = OpKind::reorder;
    op.pass = pass;
    op.name = "reorder to " + value(to).name;
    op.reads = {from};
    op.writes = {to};
    op.kernel = "onednn reorder";
    op.workspace_bytes =
        round_up(reorder_workspace_bytes(value(from).layout, value(to).layout,
                                         value(from).spec.shape, physical_.threads),
                 kAlignment);
    finish(op);
    physical_.operations.push_back(std::move(op));
  }

  const Graph& graph_;
  PhysicalGraph physical_;
  std::map<ValueId, std::vector<ValueId>> copies_;
};

PhysicalGraph select(const Graph& graph, const TrainingGraph& training, int threads,
                     const KernelOptions& options) {
  if (options.precision == Precision::bf16 && !has_bf16())
    throw DeviceError(
        "this processor has no instructions for bf16 (AVX512_BF16): remove \"precision\" or set it "
        "to \"float32\" (at /train/precision)");
  return Selector(graph, training, threads, options).take();
}

Kernel make(const Graph& graph, const Solver* solver, const PhysicalGraph& physical,
            const PhysicalOperation& op) {
  if (op.kind == OpKind::reorder)
    return reorder_kernel(physical.value(op.reads[0]).layout, physical.value(op.writes[0]).layout,
                          physical.value(op.reads[0]).spec.shape, physical.threads);
  if (op.kind == OpKind::accumulate) {
    const PhysicalValue& sum = physical.value(op.writes[0]);
    return add_kernel(sum.layout.element, num_elements(sum), 2, false, physical.threads);
  }
  if (op.kind != OpKind::layer || op.kernel == "reference")
    return make_reference_kernel(graph, solver, physical, op);
  const Node& node = graph.node(op.node);
  const std::vector<TensorSpec> inputs = graph.input_specs(node);
  return find_cpu_layer(node.type)->make(
      {node, inputs, op.pass, op.fusion, op.all_gradients, physical.threads, physical.options,
       layouts_of(physical, op.reads), layouts_of(physical, op.writes)});
}

std::string describe() {
  const dnnl_version_t* version = dnnl_version();
  return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

}  // namespace

#define LAYUP_LIST_ITEM(name) CpuLayer name##_cpu();
#include "layers/cpu_list.inc"
#undef LAYUP_LIST_ITEM

const CpuLayer* find_cpu_layer(const std::string& type) {
  static const std::vector<CpuLayer> layers = {
#define LAYUP_LIST_ITEM(name) name##_cpu(),
#include "layers/cpu_list.inc"
#undef LAYUP_LIST_ITEM
  };
  for (const CpuLayer& layer : layers)
    if (layer.type == type) return &layer;
  return nullptr;
}

}  // namespace layup::cpu

namespace layup {

const DeviceKernels* cpu_kernels() {
  static const DeviceKernels kernels{cpu::select, cpu::make, cpu::describe, cpu::has_bf16};
  return &kernels;
}

}  // namespace layup
