// SPDX-License-Identifier: Apache-2.0
// TrainingGraph x device: the one place where layouts, byte sizes, fusions, algorithms and
// workspace are chosen. Planner and policies see only this. Nothing here needs the device to be
// present.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/training_graph.h"
#include "engine/layout.h"
#include "engine/solver/solver.h"

namespace layup {

// Every value and workspace begins at a multiple of this, and takes a multiple of it.
inline constexpr std::int64_t kAlignment = 64;

// Direct I/O wants this of offsets, addresses and lengths (512 would do for some devices).
inline constexpr std::int64_t kFileAlignment = 4096;

struct PhysicalValue : Value {
  std::int64_t bytes = 0;  // padded to PhysicalGraph::alignment (what persists: to kAlignment)
  Layout layout;
};

// What an operation of a batch norm or an add does on its way to y.
enum class Fusion : std::uint8_t { none, relu, add_relu };

struct PhysicalOperation : Operation {
  std::string kernel;  // the chosen algorithm, for people and for plans: "reference"
  Fusion fusion = Fusion::none;
  std::vector<NodeId> fused;   // further layers whose work this operation does
  bool all_gradients = false;  // a backward_data that does the work of backward_params as well
  // Equal keys cost the same on one device with one number of threads: type, pass, parameters and
  // shapes, without names.
  std::string cost_key;
  std::int64_t workspace_bytes = 0;
  double flops = 0;
  double bytes_moved = 0;  // compulsory traffic: every operand once
  CostKind cost_kind = CostKind::bandwidth;
};

// Of activations, their gradients and the operands of convolutions. Parameters, their gradients,
// solver state, statistics and losses are float32 always.
enum class Precision : std::uint8_t { float32, bf16 };

// What a user may choose about kernels; a part of the plan, since results depend on it.
struct KernelOptions {
  bool winograd = true;  // where it is faster
  Precision precision = Precision::float32;

  bool operator==(const KernelOptions&) const = default;
};

struct PhysicalGraph {
  DeviceKind device = DeviceKind::reference;
  KernelOptions options;
  int threads = 1;
  std::int64_t alignment = kAlignment;  // of all but what persists
  std::int64_t batch = 0;
  bool is_training = true;
  std::int64_t num_layers = 0;
  std::vector<PhysicalValue> values;
  std::vector<PhysicalOperation> operations;
  // By node (see TrainingGraph), then the loads: what can be done again in backward.
  std::vector<PhysicalOperation> replays;
  std::vector<Parameter> parameters;
  std::vector<Buffer> buffers;
  ValueId staged_images{};
  ValueId staged_labels{};
  std::int64_t staging_batch = 0;
  double clip_norm = 0;
  std::vector<ValueId> losses;
  std::optional<ValueId> correct;

  const PhysicalValue& value(ValueId id) const { return values[index(id)]; }
};

inline std::int64_t num_elements(const PhysicalValue& value) {  // with padding
  return num_elements(value.layout, value.spec.shape);
}

// Throws DeviceError for a device that this build does not have and for a processor that lacks what
// the options want, ConfigError for options that the device does not know.
PhysicalGraph select_kernels(const Graph& graph, const TrainingGraph& training, DeviceKind device,
                             int threads, const KernelOptions& options = {});

// Values and workspaces but those that persist begin at a multiple of `alignment` (a multiple of
// kAlignment) and take a multiple of it, as copies to and from a file want.
void widen_alignment(PhysicalGraph& graph, std::int64_t alignment);

// The kernel of one operation of `physical` (which must come from `graph`). `solver` makes updates;
// null if there are none. What is allocated is allocated here, not when the kernel runs.
Kernel make_kernel(const Graph& graph, const Solver* solver, const PhysicalGraph& physical,
                   const PhysicalOperation& op);

}  // namespace layup
