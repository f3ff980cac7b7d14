// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/graph/device_kernels.h"

namespace layup {

// How images come to the layer under test: by themselves, or as its neighbours in a network leave
// them, in blocks of channels where the device has such layouts.
enum class Operands : std::uint8_t { plain, blocked };

// A layer whose kernels are those of another device: operands go from plain to the layouts that its
// select_kernels chose and back, so that whatever tests a layer can test the device. `layer` must
// outlive it.
class DeviceLayer : public Layer {
 public:
  DeviceLayer(const Layer& layer, std::string type, DeviceKind device,
              Operands operands = Operands::plain, const KernelOptions& options = {})
      : layer_(layer),
        type_(std::move(type)),
        device_(device),
        operands_(operands),
        options_(options) {}

  LayerInfo infer(std::span<const TensorSpec> inputs) const override {
    return layer_.infer(inputs);
  }
  std::int64_t workspace_bytes(const KernelRequest& request) const override;
  Kernel make_kernel(const KernelRequest& request) const override;
  Json params() const override { return layer_.params(); }

 private:
  const Layer& layer_;
  std::string type_;
  DeviceKind device_;
  Operands operands_;
  KernelOptions options_;
};

}  // namespace layup
