// SPDX-License-Identifier: Apache-2.0
// Linked where the build has no oneDNN.
#include "engine/graph/device_kernels.h"

namespace layup {

const DeviceKernels* cpu_kernels() { return nullptr; }

}  // namespace layup
