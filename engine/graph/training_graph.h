// SPDX-License-Identifier: Apache-2.0
// All operations of one step in order, and all values that they read and write.
//
// Backward of a parametric layer is two operations (parameter gradients first, then the gradient of
// its input), so that they can be scheduled apart. Where a tensor has several readers, adding up
// their gradients is an operation of its own, in the order in which backward meets the readers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/graph/graph.h"

namespace layup {

enum class ValueKind : std::uint8_t {
  input,       // the batch on the device, and its labels
  activation,  // y of a layer
  saved,       // written by forward for backward
  carry,       // between the two backward operations of a layer
  gradient,    // of an activation
  parameter_gradient,
  // The rest live from step to step, at addresses that all programs of a session share.
  parameter,
  buffer,  // BN running statistics
  solver_state,
  gradient_sum,  // of a parameter, over the micro-batches of a step
  metric,        // what the host reads after a step: losses, numbers of correct answers
  staging,       // where the loader puts batches, two slots
};
const char* to_string(ValueKind kind);
constexpr bool is_persistent(ValueKind kind) { return kind >= ValueKind::parameter; }

struct Value {
  std::string name;  // "conv1:y", "conv1.weight", "conv1.weight:grad": unique
  TensorSpec spec;
  ValueKind kind = ValueKind::activation;

  bool operator==(const Value&) const = default;
};

enum class OpKind : std::uint8_t {
  load,         // staging -> input (the slot is in StepState)
  layer,        // a pass of a layer
  accumulate,   // sum of two gradients
  clip_factor,  // from all parameter gradients: min(1, clip_norm / norm)
  scale,        // gradient times clip_factor
  update,       // solver step of one parameter
  reorder,      // a value in another layout; only in a PhysicalGraph, with the pass that wants it
};
const char* to_string(OpKind kind);

struct Operation {
  OpKind kind = OpKind::layer;
  std::string name;  // "conv1 forward"
  NodeId node{};     // of a layer operation
  Pass pass = Pass::forward;
  std::int32_t parameter = -1;  // of an update: index into TrainingGraph::parameters
  std::vector<ValueId> reads;   // in the order of the kernel's arguments
  std::vector<ValueId> writes;  // persistent values listed here are updated where they lie
  std::vector<InPlace> in_place;

  bool operator==(const Operation&) const = default;
};

struct Parameter {
  std::string name;  // "conv1.weight"
  NodeId node{};
  Shape shape;
  Initializer init;
  ValueId value{};
  ValueId gradient{};           // what its update reads; meaningful in graphs that update
  std::vector<ValueId> states;  // of the solver
};

struct Buffer {
  std::string name;
  Shape shape;
  float initial = 0;
  ValueId value{};
};

struct TrainingGraph {
  std::int64_t batch = 0;
  bool is_training = true;
  std::vector<Value> values;
  std::vector<Operation> operations;  // load, forward, backward, update
  // How to compute the output of node i again in backward (of training graphs): an operation that
  // updates nothing and gives the same bits. Not part of `operations`.
  std::vector<Operation> replays;
  std::vector<Parameter> parameters;  // in node order
  std::vector<Buffer> buffers;
  ValueId input{};  // images on the device
  ValueId labels{};
  ValueId staged_images{};
  ValueId staged_labels{};
  std::vector<ValueId> losses;     // metrics
  std::optional<ValueId> correct;  // metric: number of right answers
  std::int64_t staging_batch = 0;  // samples per staging slot
  double clip_norm = 0;

  const Value& value(ValueId id) const { return values[index(id)]; }
};

inline constexpr int kStagingSlots = 2;

// What a program is in a step of several micro-batches. Gradients of the first are stored to the
// sums, those of the others added; the last one updates.
enum class MicroBatch : std::uint8_t { whole, first, middle, last };

struct DifferentiateOptions {
  std::vector<std::string> solver_states;  // per parameter: Solver::state_names()
  // Samples that one staging slot holds; at least the graph's batch (0: that batch). All programs
  // of a session agree on it.
  std::int64_t staging_batch = 0;
  MicroBatch micro_batch = MicroBatch::whole;
  double clip_norm = 0;  // of all gradients together; 0: no clipping
};

// Training: throws GraphError if there is no loss, an output that nobody reads, or a layer that
// cannot train with these shapes (LayerInfo::training_error).
TrainingGraph differentiate(const Graph& graph, const DifferentiateOptions& options);
// Evaluation: the forward passes alone.
TrainingGraph inference_graph(const Graph& graph, const DifferentiateOptions& options);

// The slow, obvious check: every value is written before it is read, transient values are written
// once, in-place pairs agree in bytes, every parameter is updated once after its gradient is
// complete. Throws GraphError.
void validate_training_graph(const TrainingGraph& graph);

std::string to_string(const TrainingGraph& graph);

}  // namespace layup
