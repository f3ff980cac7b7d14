// SPDX-License-Identifier: Apache-2.0
#include "engine/graph/physical_graph.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/error.h"
#include "engine/graph/device_kernels.h"
#include "engine/parallel.h"
#include "engine/rng.h"

namespace layup {
namespace {

KernelRequest request_for(const Node& node, const std::vector<TensorSpec>& inputs, Pass pass,
                          int threads) {
  return {pass, inputs, fnv1a(node.name), threads};
}

// sum = a + b, element by element; the result may lie over either.
Kernel accumulate_kernel(std::int64_t count, int threads) {
  return [count, threads](const KernelArgs& args) {
    const float* a = args.read(0);
    const float* b = args.read(1);
    float* sum = args.write(0);
    parallel_for(threads, count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) sum[i] = a[i] + b[i];
    });
  };
}

// result = gradient * factor; the result may lie over the gradient.
Kernel scale_kernel(std::int64_t count, int threads) {
  return [count, threads](const KernelArgs& args) {
    const float* gradient = args.read(0);
    const float factor = *args.read(1);
    float* result = args.write(0);
    parallel_for(threads, count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) result[i] = gradient[i] * factor;
    });
  };
}

// factor = min(1, clip_norm / (norm + 1e-6)) with the norm over all gradients together: PyTorch's
// clip_grad_norm_. Sums in double, in the order of parameters. A gradient that is not finite fails
// the step.
Kernel clip_factor_kernel(std::vector<std::int64_t> counts, double clip_norm) {
  return [counts = std::move(counts), clip_norm](const KernelArgs& args) {
    double total = 0;
    for (std::size_t k = 0; k < counts.size(); ++k) {
      const float* gradient = args.read(static_cast<int>(k));
      double sum = 0;
      for (std::int64_t i = 0; i < counts[k]; ++i) sum += double{gradient[i]} * gradient[i];
      if (!std::isfinite(sum) && args.state->failed == 0)
        args.state->failed = kFailedGradient + static_cast<std::int32_t>(k);
      total += sum;
    }
    *args.write(0) = static_cast<float>(std::min(1.0, clip_norm / (std::sqrt(total) + 1e-6)));
  };
}

// Copies the program's rows of this step's staging slot.
Kernel load_kernel(std::int64_t rows, std::int64_t bytes, std::int64_t slot_bytes) {
  return [row_bytes = bytes / rows, bytes, slot_bytes](const KernelArgs& args) {
    const char* slot = args.read<char>(0) + slot_bytes * args.state->input_slot;
    std::memcpy(args.write<char>(0), slot + row_bytes * args.state->first_row,
                static_cast<std::size_t>(bytes));
  };
}

}  // namespace

PhysicalGraph physical_frame(const Graph& graph, const TrainingGraph& training, DeviceKind device,
                             int threads, const KernelOptions& options) {
  PhysicalGraph physical;
  physical.device = device;
  physical.options = options;
  physical.threads = threads;
  physical.batch = training.batch;
  physical.is_training = training.is_training;
  physical.num_layers = static_cast<std::int64_t>(graph.nodes.size());
  for (const Value& value : training.values) {
    PhysicalValue& added = physical.values.emplace_back();
    static_cast<Value&>(added) = value;
    added.bytes = round_up(num_bytes(value.spec), kAlignment);
  }
  physical.parameters = training.parameters;
  physical.buffers = training.buffers;
  physical.staged_images = training.staged_images;
  physical.staged_labels = training.staged_labels;
  physical.staging_batch = training.staging_batch;
  physical.clip_norm = training.clip_norm;
  physical.losses = training.losses;
  physical.correct = training.correct;
  return physical;
}

void describe_costs(const Graph& graph, const PhysicalGraph& physical, PhysicalOperation& op) {
  for (const ValueId value : op.reads)
    op.bytes_moved += static_cast<double>(physical.value(value).bytes);
  for (const ValueId value : op.writes)
    op.bytes_moved += static_cast<double>(physical.value(value).bytes);
  if (op.kind == OpKind::load)  // one of the slots
    op.bytes_moved = 2.0 * static_cast<double>(physical.value(op.writes[0]).bytes);
  if (op.kind == OpKind::update)  // what is updated where it lies is read and written
    for (const ValueId value : op.writes)
      op.bytes_moved += static_cast<double>(physical.value(value).bytes);
  if (op.kind != OpKind::layer) {
    op.cost_key = std::string(to_string(op.kind)) + " " +
                  to_string(physical.value(op.writes[0]).spec) + " x" +
                  std::to_string(op.reads.size()) + "+" + std::to_string(op.writes.size());
    return;
  }
  const Node& node = graph.node(op.node);
  op.flops = node.info.pass(op.pass).flops;
  if (op.all_gradients) op.flops += node.info.pass(Pass::backward_params).flops;
  op.cost_key = node.type + " " + to_string(op.pass) + " " + node.layer->params().dump();
  for (const TensorSpec& input : graph.input_specs(node)) op.cost_key += " " + to_string(input);
  op.cost_kind = node.info.cost_kind;
}

std::int64_t reference_workspace_bytes(const Graph& graph, const PhysicalGraph& physical,
                                       const Operation& op) {
  if (op.kind != OpKind::layer) return 0;
  const Node& node = graph.node(op.node);
  const std::vector<TensorSpec> inputs = graph.input_specs(node);
  return round_up(node.layer->workspace_bytes(request_for(node, inputs, op.pass, physical.threads)),
                  kAlignment);
}

PhysicalGraph select_kernels(const Graph& graph, const TrainingGraph& training, DeviceKind device,
                             int threads, const KernelOptions& options) {
  if (device != DeviceKind::reference)
    return require_device_kernels(device).select(graph, training, threads, options);
  if (options.precision != Precision::float32)
    throw ConfigError(
        "\"bf16\" is a precision of the cpu device: use --device cpu, or remove "
        "\"precision\" (at /train/precision)");
  PhysicalGraph physical = physical_frame(graph, training, device, threads, options);
  const auto add = [&](std::vector<PhysicalOperation>& list, const Operation& logical) {
    PhysicalOperation& op = list.emplace_back();
    static_cast<Operation&>(op) = logical;
    op.kernel = to_string(device);
    op.workspace_bytes = reference_workspace_bytes(graph, physical, op);
    describe_costs(graph, physical, op);
  };
  for (const Operation& op : training.operations) add(physical.operations, op);
  for (const Operation& op : training.replays) add(physical.replays, op);
  if (training.is_training)  // the batch is still in its staging slot: loading it again is a replay
    for (const Operation& op : training.operations)
      if (op.kind == OpKind::load) add(physical.replays, op);
  return physical;
}

void widen_alignment(PhysicalGraph& graph, std::int64_t alignment) {
  graph.alignment = alignment;
  for (PhysicalValue& value : graph.values)
    if (!is_persistent(value.kind)) value.bytes = round_up(value.bytes, alignment);
  for (auto* operations : {&graph.operations, &graph.replays})
    for (PhysicalOperation& op : *operations)
      op.workspace_bytes = round_up(op.workspace_bytes, alignment);
}

Kernel make_kernel(const Graph& graph, const Solver* solver, const PhysicalGraph& physical,
                   const PhysicalOperation& op) {
  if (physical.device != DeviceKind::reference)
    return require_device_kernels(physical.device).make(graph, solver, physical, op);
  return make_reference_kernel(graph, solver, physical, op);
}

Kernel make_reference_kernel(const Graph& graph, const Solver* solver,
                             const PhysicalGraph& physical, const PhysicalOperation& op) {
  switch (op.kind) {
    case OpKind::load: {
      const TensorSpec& staged = physical.value(op.reads[0]).spec;
      return load_kernel(physical.batch, num_bytes(physical.value(op.writes[0]).spec),
                         num_bytes(staged) / kStagingSlots);
    }
    case OpKind::accumulate:
      return accumulate_kernel(num_elements(physical.value(op.writes[0])), physical.threads);
    case OpKind::clip_factor: {
      std::vector<std::int64_t> counts;
      for (const ValueId gradient : op.reads)
        counts.push_back(num_elements(physical.value(gradient)));
      return clip_factor_kernel(std::move(counts), physical.clip_norm);
    }
    case OpKind::scale:
      return scale_kernel(num_elements(physical.value(op.writes[0])), physical.threads);
    case OpKind::update:
      LAYUP_ASSERT(solver != nullptr);
      return solver->make_update(num_elements(physical.value(op.writes[0])), op.parameter,
                                 physical.threads);
    case OpKind::reorder: LAYUP_ASSERT(false); break;
    case OpKind::layer: break;
  }
  const Node& node = graph.node(op.node);
  const std::vector<TensorSpec> inputs = graph.input_specs(node);
  return node.layer->make_kernel(request_for(node, inputs, op.pass, physical.threads));
}

}  // namespace layup
