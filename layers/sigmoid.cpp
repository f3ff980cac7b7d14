// SPDX-License-Identifier: Apache-2.0
// Logistic function, element by element.
//
//   y = 1 / (1 + exp(-x))              0 and 1 at the ends, without overflow on the way; NaN stays
//   dx = dy * y * (1 - y)
//
// Backward reads: y, dy. In place: y over x, dx over y or dy. Recompute: yes.
#include "layers/activation.h"

namespace layup {

LayerType sigmoid_layer() { return activation_layer<Sigmoid>(); }

}  // namespace layup
