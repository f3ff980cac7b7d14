// SPDX-License-Identifier: Apache-2.0
// Runs one layer outside any session: owns a buffer for every slot and calls the layer's kernels
// with exactly the pointers that its passes list.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/layer.h"

namespace layup {

// Reads a layer as a network file would; throws ConfigError with all errors, unknown keys included.
std::unique_ptr<Layer> read_layer(const LayerType& type, const Json& params);

// Bytes between two guards of 64 bytes that nobody may write to. Aligned to 64 bytes.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::int64_t size_bytes = 0);
  std::span<std::byte> bytes();
  std::span<const std::byte> bytes() const;
  void fill(std::byte value);
  bool is_intact() const;

 private:
  struct alignas(64) Block {
    std::byte bytes[64];
  };
  std::vector<Block> blocks_;
  std::size_t size_bytes_;
};

constexpr std::byte kPoison{0xFF};  // in float32 a NaN, in int32 -1

class LayerHarness {
 public:
  // `layer` must outlive the harness. All buffers start as zeros; see fill.
  LayerHarness(const Layer& layer, std::vector<TensorSpec> inputs, int threads = 1);

  const LayerInfo& info() const { return info_; }
  const std::vector<Slot>& slots() const { return slots_; }  // all that the layer has
  bool has(Slot slot) const;
  TensorSpec spec(Slot slot) const;
  std::span<std::byte> bytes(Slot slot);
  std::span<const std::byte> bytes(Slot slot) const;
  template <typename T = float>
  std::span<T> values(Slot slot) {
    const std::span<std::byte> raw = bytes(slot);
    return {reinterpret_cast<T*>(raw.data()), raw.size() / sizeof(T)};
  }
  StepState& state() { return state_; }

  // Inputs and parameters that keep away from kinks (see spread_values), random upstream
  // gradients, labels in range, buffers at their initial values.
  void fill(std::uint64_t seed);

  struct RunOptions {
    std::span<const InPlace> in_place;  // which of the pass's variants to use (all of these)
    bool poison = false;  // workspace and every slot that the pass does not list as read
  };
  // Runs a pass. Throws std::runtime_error when the kernel wrote outside its buffers, or into one
  // that the pass reads and does not write.
  void run(Pass pass) { run(pass, RunOptions{}); }
  void run(Pass pass, const RunOptions& options);
  // forward, backward_params, backward_data, as far as they exist; where the layer passes
  // gradients through, dx gets the bytes of dy.
  void run_step();

  // Called before and after each kernel, so that allocations_in_last_run() is known.
  void set_allocation_counter(std::int64_t (*counter)()) { allocation_counter_ = counter; }
  std::int64_t allocations_in_last_run() const { return allocations_in_last_run_; }

 private:
  std::size_t position(Slot slot) const;
  KernelRequest request(Pass pass) const;
  void poison_all_but_reads(const PassSpec& pass);
  void check_guards(Pass pass) const;

  const Layer* layer_;
  std::vector<TensorSpec> inputs_;
  LayerInfo info_;
  int threads_;
  std::vector<Slot> slots_;
  std::vector<GuardedBuffer> buffers_;  // like slots_
  std::array<Kernel, kNumPasses> kernels_;
  GuardedBuffer workspace_;
  StepState state_;
  std::int64_t (*allocation_counter_)() = nullptr;
  std::int64_t allocations_in_last_run_ = 0;
};

// `count` different values in [-2, 2], shuffled; neighbours are spacing(count) apart and none is
// nearer to 0 than half of that, so that changing one value by less than half the spacing crosses
// no kink of a ReLU or a maximum.
std::vector<float> spread_values(std::size_t count, std::uint64_t seed);
double spacing(std::size_t count);

std::string to_string(Slot slot);  // "dx1"

}  // namespace layup
