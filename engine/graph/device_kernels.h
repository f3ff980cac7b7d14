// SPDX-License-Identifier: Apache-2.0
// How a device other than the reference is joined to select_kernels and make_kernel. The build
// links either its kernels or a stub that has none.
#pragma once

#include "engine/graph/physical_graph.h"

namespace layup {

struct DeviceKernels {
  PhysicalGraph (*select)(const Graph& graph, const TrainingGraph& training, int threads,
                          const KernelOptions& options) = nullptr;
  Kernel (*make)(const Graph& graph, const Solver* solver, const PhysicalGraph& physical,
                 const PhysicalOperation& op) = nullptr;
  std::string (*describe)() = nullptr;  // "oneDNN 2.6.3"
  bool (*has_bf16)() = nullptr;         // whether the processor has its instructions
};

// Null where the build has none: layers/cpu/ or engine/graph/no_cpu_kernels.cpp.
const DeviceKernels* cpu_kernels();

// Throws DeviceError.
const DeviceKernels& require_device_kernels(DeviceKind device);
bool has_device(DeviceKind device);
// Whether Precision::bf16 can be asked for.
bool has_bf16(DeviceKind device);
// What `--device auto` means.
DeviceKind default_device();

// What select_kernels of every device starts from: all values, plain, and no operations.
PhysicalGraph physical_frame(const Graph& graph, const TrainingGraph& training, DeviceKind device,
                             int threads, const KernelOptions& options);
// Fills flops, bytes_moved, cost_key and cost_kind from the operands as they are.
void describe_costs(const Graph& graph, const PhysicalGraph& physical, PhysicalOperation& op);
// Reference kernels, on operands that are plain (loads, accumulates and updates on any layout).
std::int64_t reference_workspace_bytes(const Graph& graph, const PhysicalGraph& physical,
                                       const Operation& op);
Kernel make_reference_kernel(const Graph& graph, const Solver* solver,
                             const PhysicalGraph& physical, const PhysicalOperation& op);

}  // namespace layup
