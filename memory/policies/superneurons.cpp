// SPDX-License-Identifier: Apache-2.0
// `superneurons`: liveness, outputs of convolutions go to the host, what is cheap is recomputed.
//
// Source: Wang et al. 2018, "SuperNeurons: dynamic GPU memory management for training deep neural
// networks", PPoPP, arXiv:1801.04380. Layers fall into checkpoints and the rest. Outputs of
// convolutions are offloaded; between two checkpoints, outputs are dropped and computed again, in
// one of two ways. Speed-centric: the segment is replayed once and stays until it is used up.
// Memory-centric: it is replayed for every layer of it, and only what that layer reads stays; the
// checkpoint that it begins at comes back anew.
// Cost-aware: a segment is replayed once if that needs no more than l_peak, the operands of the
// layer whose backward has the most of them; that layer sets the peak of the whole step.
//
// As there (and unlike this engine's own needs), backward of every layer but convolution and
// linear has x and y on the device, and nothing lies in place over something else: that is what
// the published bytes are made of.
//
// Departures:
//   - joins, and outputs that several layers read (forks), are offloaded like convolutions. The
//     paper's tensor cache sends them away under pressure only; here the pressure is known before
//     the step: with a budget the tail of the network stays resident;
//   - the batch is loaded again from its staging slot (the published bytes leave it out);
//   - copies are placed by predicted times, and algorithms are the device's, not chosen by what is
//     left at each step.
// Further variants are the rungs of the paper's ladder: "baseline" (every buffer by itself; layers
// that may write a gradient over the one that they read do), "liveness", "offload" (with transfers,
// nothing recomputed), and "speed_centric" and "memory_centric" for all segments.
#include <algorithm>

#include "memory/policy.h"

namespace layup {
namespace {

constexpr int kNumLevels = 65;
enum Variant : int { cost_aware, speed_centric, memory_centric, offload, liveness, baseline };

bool is_forward_layer(const PhysicalOperation& op) {
  return op.kind == OpKind::layer && op.pass == Pass::forward;
}

void add_reads(PhysicalGraph& graph) {
  add_operands(graph, [](const PhysicalGraph& /*graph*/, const PhysicalOperation& forward) {
    const bool is_cheap = forward.cost_kind == CostKind::bandwidth;
    return WantedOperands{is_cheap, is_cheap};
  });
}

// What the paper counts in a layer: tensors of the batch and their gradients.
std::int64_t tensor_bytes(const PhysicalGraph& graph, const PhysicalOperation& op,
                          bool gradients_only = false) {
  std::int64_t bytes = 0;
  for (const auto* operands : {&op.reads, &op.writes})
    for (const ValueId value : *operands) {
      const ValueKind kind = graph.value(value).kind;
      if (kind == ValueKind::gradient || (!gradients_only && kind == ValueKind::activation))
        bytes += graph.value(value).bytes;
    }
  return bytes;
}

// A run of recomputed values, each made from the one before; the first from a checkpoint.
struct Segment {
  ValueId head{};  // the checkpoint
  std::int64_t head_bytes = 0;
  std::int64_t output_bytes = 0;    // of all its values
  std::int64_t gradient_bytes = 0;  // dx and dy of its widest layer
  std::vector<ValueId> values;

  std::int64_t bytes() const { return head_bytes + output_bytes + gradient_bytes; }
};

std::vector<Segment> find_segments(const PolicyInput& input,
                                   const std::vector<Retention>& retention) {
  const PhysicalGraph& graph = input.graph;
  std::vector<std::int64_t> gradient_bytes(graph.operations.size(), 0);  // by node
  for (const PhysicalOperation& op : graph.operations)
    if (op.kind == OpKind::layer && op.pass == Pass::backward_data)
      gradient_bytes[index(op.node)] = tensor_bytes(graph, op, true);
  std::vector<Segment> segments;
  std::vector<int> segment_of(graph.values.size(), -1);
  for (std::int32_t i = 0; i < input.uses.first_backward; ++i) {
    const PhysicalOperation& op = graph.operations[static_cast<std::size_t>(i)];
    if (!is_forward_layer(op)) continue;
    for (const ValueId value : op.writes) {
      if (input.uses.at(value).producer != i || retention[index(value)] != Retention::recompute)
        continue;
      const ValueId x = op.reads[0];
      int& number = segment_of[index(value)];
      number = segment_of[index(x)];
      if (number < 0) {
        number = static_cast<int>(segments.size());
        segments.emplace_back();
        segments.back().head = x;
        segments.back().head_bytes = graph.value(x).bytes;
      }
      Segment& segment = segments[static_cast<std::size_t>(number)];
      segment.output_bytes += graph.value(value).bytes;
      segment.gradient_bytes = std::max(segment.gradient_bytes, gradient_bytes[index(op.node)]);
      segment.values.push_back(value);
    }
  }
  return segments;
}

void choose_replays(const PolicyInput& input, Variant variant, Decisions& decisions) {
  if (variant == speed_centric) return;
  std::int64_t largest_layer = 0;  // l_peak
  for (const PhysicalOperation& op : input.graph.operations)
    if (op.kind == OpKind::layer && op.pass != Pass::forward)
      largest_layer = std::max(largest_layer, tensor_bytes(input.graph, op));
  decisions.leaves_as_link.assign(input.graph.values.size(), 0);
  for (const Segment& segment : find_segments(input, decisions.retention))
    if (variant == memory_centric || segment.bytes() > largest_layer) {
      decisions.leaves_as_link[index(segment.head)] = 1;
      for (const ValueId value : segment.values) decisions.leaves_as_link[index(value)] = 1;
    }
}

// By the kind of the layer that makes a value.
void classify(const PolicyInput& input, Variant variant, Decisions& decisions) {
  const std::vector<int> num_readers = count_forward_readers(input);
  for (std::int32_t i = 0; i < input.uses.first_backward; ++i) {
    const PhysicalOperation& op = input.graph.operations[static_cast<std::size_t>(i)];
    const auto num_inputs = std::count_if(op.reads.begin(), op.reads.end(), [&](ValueId value) {
      return input.graph.value(value).kind == ValueKind::activation;
    });
    for (const ValueId value : op.writes) {
      const ValueUse& use = input.uses.at(value);
      if (use.producer != i || is_small(input, value)) continue;
      const ValueKind kind = input.graph.value(value).kind;
      Retention& retention = decisions.retention[index(value)];
      if (kind == ValueKind::input) {
        retention = use.replay >= 0 ? Retention::recompute : Retention::offload;
      } else if (kind == ValueKind::activation && op.cost_kind != CostKind::linear) {
        const bool is_joint = num_inputs > 1 || num_readers[index(value)] > 1;
        if (op.cost_kind == CostKind::conv)
          retention = Retention::offload;
        else if (variant == offload)
          retention = Retention::keep;
        else
          retention = is_joint || use.replay < 0 ? Retention::offload : Retention::recompute;
      }
    }
  }
}

Decisions decide(const PolicyInput& input, int variant, int level) {
  Decisions decisions;
  decisions.retention = keep_candidates(input);
  decisions.in_place = variant == baseline;
  decisions.reuse = variant != baseline;
  if (variant == liveness || variant == baseline) return decisions;
  classify(input, static_cast<Variant>(variant), decisions);
  keep_tail(input, level, kNumLevels, decisions);
  if (variant != offload) choose_replays(input, static_cast<Variant>(variant), decisions);
  return decisions;
}

}  // namespace

Policy superneurons_policy() {
  Policy policy;
  policy.name = "superneurons";
  policy.summary = "convolutions' outputs go to the host, the rest is recomputed in segments";
  policy.num_levels = kNumLevels;
  policy.variant_names = {"cost_aware", "speed_centric", "memory_centric",
                          "offload",    "liveness",      "baseline"};
  policy.add_reads = add_reads;
  policy.decide = decide;
  return policy;
}

}  // namespace layup
