// SPDX-License-Identifier: Apache-2.0
#include "engine/graph/device_kernels.h"

#include "engine/error.h"

namespace layup {
namespace {

const DeviceKernels* find_device_kernels(DeviceKind device) {
  return device == DeviceKind::cpu ? cpu_kernels() : nullptr;
}

}  // namespace

const DeviceKernels& require_device_kernels(DeviceKind device) {
  const DeviceKernels* kernels = find_device_kernels(device);
  if (kernels == nullptr)
    throw DeviceError(std::string("this build has no device \"") + to_string(device) + "\"" +
                      (device == DeviceKind::cpu ? " (oneDNN)" : "") + "; use --device reference");
  return *kernels;
}

bool has_device(DeviceKind device) {
  return device == DeviceKind::reference || find_device_kernels(device) != nullptr;
}

DeviceKind default_device() {
  return has_device(DeviceKind::cpu) ? DeviceKind::cpu : DeviceKind::reference;
}

bool has_bf16(DeviceKind device) {
  const DeviceKernels* kernels = find_device_kernels(device);
  return kernels != nullptr && kernels->has_bf16();
}

}  // namespace layup
