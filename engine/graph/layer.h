// SPDX-License-Identifier: Apache-2.0
// All that a layer implements. Generic code (differentiation, planning, scheduling) asks a layer
// for properties through this header and never for its type.
//
// A layer is stateless: its parameters come from JSON, its shapes from its inputs, and everything
// that it computes goes through tensors named by slots. Each pass lists exactly what it reads and
// writes; a kernel gets pointers in that order and can touch nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/initializer.h"
#include "engine/json_reader.h"
#include "engine/step_state.h"
#include "engine/tensor.h"

namespace layup {

enum class Pass : std::uint8_t {
  forward,          // training: writes y and the saved values, updates buffers
  evaluate,         // inference: writes y (and metrics)
  replay,           // recompute y in backward from x and saved values; updates nothing, same bits
  backward_params,  // parameter gradients (and carries for backward_data)
  backward_data,    // gradients of the inputs
};
constexpr int kNumPasses = 5;
const char* to_string(Pass pass);

enum class Role : std::uint8_t {
  x,                   // input `index`
  y,                   // the output
  dx,                  // gradient of input `index`
  dy,                  // gradient of the output
  parameter,           // by index into LayerInfo::parameters
  parameter_gradient,  // likewise
  buffer,              // persistent state that is not trained (BN running statistics)
  saved,               // written by forward, read by backward (BN mean, pooling indices)
  carry,               // written by backward_params, read by backward_data
  labels,              // i32[N], from the data set
  metric,              // read by the host after the step (number of correct answers)
};

struct Slot {
  Role role = Role::x;
  int index = 0;

  bool operator==(const Slot&) const = default;
};

// The bytes of reads[read] may be those of writes[write]: the kernel is right when both pointers
// are equal. (A buffer is always updated where it lies and only listed under writes.)
struct InPlace {
  int read = 0;
  int write = 0;

  bool operator==(const InPlace&) const = default;
};

struct PassSpec {
  std::vector<Slot> reads;
  std::vector<Slot> writes;  // empty: the layer has no such pass
  std::vector<InPlace> in_place;
  double flops = 0;  // multiplications and additions; for the cost model and reports

  bool exists() const { return !writes.empty(); }
  bool operator==(const PassSpec&) const = default;
};

struct ParameterSpec {
  std::string name;  // as in PyTorch: "weight", "bias"
  Shape shape;       // weights OIHW or [out, in]
  Initializer init;

  bool operator==(const ParameterSpec&) const = default;
};

struct BufferSpec {
  std::string name;  // "running_mean"
  Shape shape;       // float32
  float initial = 0;

  bool operator==(const BufferSpec&) const = default;
};

// What the cost model treats apart; everything else is bound by memory bandwidth.
enum class CostKind : std::uint8_t { bandwidth, conv, linear };

// A layer bound to the shapes of its inputs: plain data.
struct LayerInfo {
  TensorSpec output;
  std::vector<ParameterSpec> parameters;
  std::vector<BufferSpec> buffers;
  std::vector<TensorSpec> saved;
  std::vector<TensorSpec> carries;
  std::vector<std::string> metrics;  // names; each a float32 scalar
  PassSpec passes[kNumPasses];
  CostKind cost_kind = CostKind::bandwidth;
  // A loss: y is a float32 scalar, its upstream gradient is StepState::loss_gradient (not a dy).
  bool is_loss = false;
  // Of a loss: evaluation leaves it out, with all layers that nothing else needs.
  bool training_only = false;
  // dx of every input has the very bytes of dy (add, flatten): no backward pass at all.
  bool passes_gradient_through = false;
  // Not empty: training with these shapes is refused with this message (evaluation is fine).
  std::string training_error;

  PassSpec& pass(Pass p) { return passes[static_cast<int>(p)]; }
  const PassSpec& pass(Pass p) const { return passes[static_cast<int>(p)]; }
  bool operator==(const LayerInfo&) const = default;
};

enum class DeviceKind : std::uint8_t { reference, cpu, cuda };
const char* to_string(DeviceKind device);

// All that a kernel may depend on; the same request gives the same bits.
struct KernelRequest {
  Pass pass = Pass::forward;
  std::span<const TensorSpec> inputs;  // of the layer, in order
  std::uint64_t layer_key = 0;         // for random numbers: a hash of the layer's name
  int threads = 1;
};

// Pointers in the order of PassSpec::reads and ::writes.
struct KernelArgs {
  const void* const* reads = nullptr;
  void* const* writes = nullptr;
  void* workspace = nullptr;  // of the bytes asked for, 64-byte aligned
  StepState* state = nullptr;

  template <typename T = float>
  const T* read(int i) const {
    return static_cast<const T*>(reads[i]);
  }
  template <typename T = float>
  T* write(int i) const {
    return static_cast<T*>(writes[i]);
  }
};

// Made once when the session is built, run every step. Must not allocate when run.
using Kernel = std::function<void(const KernelArgs&)>;

class Layer {
 public:
  virtual ~Layer() = default;
  // Shapes, parameters, passes. Throws GraphError, without the layer's name (the caller adds it).
  virtual LayerInfo infer(std::span<const TensorSpec> inputs) const = 0;
  // The reference kernels: the specification that every other device is compared with.
  virtual std::int64_t workspace_bytes(const KernelRequest& /*request*/) const { return 0; }
  virtual Kernel make_kernel(const KernelRequest& request) const = 0;
  // The same layer, of the same results, that saves something smaller than its output for backward;
  // taken where no other layer reads that output in backward. Null if there is none.
  virtual std::shared_ptr<const Layer> with_smaller_saves() const { return nullptr; }
  // Keys as in a network file, without name, type and inputs; reading them back gives this layer.
  virtual Json params() const = 0;
};

// Shapes for which the layer suite checks a layer: small, and enough to reach every branch.
struct LayerExample {
  Json params;
  std::vector<TensorSpec> inputs;
};

struct LayerType {
  std::string name;
  std::unique_ptr<Layer> (*read)(JsonReader& params) = nullptr;  // does not call finish()
  std::vector<LayerExample> examples;
};

using LayerTypes = std::vector<LayerType>;

// Null if there is none.
const LayerType* find_layer_type(const LayerTypes& types, std::string_view name);

}  // namespace layup
