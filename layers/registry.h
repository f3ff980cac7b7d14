// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/graph/layer.h"

namespace layup {

// All layers named in layers/meson.build, in that order.
const LayerTypes& builtin_layers();

}  // namespace layup
