// SPDX-License-Identifier: Apache-2.0
// Hyperbolic tangent, element by element.
//
//   y = tanh(x)                        NaN stays
//   dx = dy * (1 - y^2)
//
// Backward reads: y, dy. In place: y over x, dx over y or dy. Recompute: yes.
#include "layers/activation.h"

namespace layup {

LayerType tanh_layer() { return activation_layer<Tanh>(); }

}  // namespace layup
