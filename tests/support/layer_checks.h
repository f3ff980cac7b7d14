// SPDX-License-Identifier: Apache-2.0
// What every layer must satisfy, one function per property. Each returns what is wrong in words;
// nothing if all is well. layer_suite_test runs them on the layers that exist, layer_checks_test
// on layers with mistakes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/graph/layer.h"

namespace layup {

using Problems = std::vector<std::string>;

struct LayerSubject {
  const Layer* layer = nullptr;
  std::vector<TensorSpec> inputs;
};

// The passes list slots that exist, and each writes what its kind of pass must and may write.
Problems check_contract(const LayerSubject& subject);
// backward (or the passing through of dy) gives the derivatives of sum(y * dy), or of the loss, by
// every input and parameter. Compared at 300 evenly spaced elements of a tensor at most.
Problems check_gradients(const LayerSubject& subject);
// Every declared in-place variant, alone and together with others, gives the same bits.
Problems check_in_place(const LayerSubject& subject);
// Filling what a pass does not read, and its workspace, with NaN changes no bit of its results.
Problems check_reads(const LayerSubject& subject);
// A second forward pass and a replay give the bits of the first.
Problems check_repeat(const LayerSubject& subject);
// 1, 2 and 3 threads give the same bits in every pass.
Problems check_threads(const LayerSubject& subject);
// No kernel allocates after its first run. `counter` returns allocations so far.
Problems check_allocations(const LayerSubject& subject, std::int64_t (*counter)());
// params() reads back as an equal layer; a misspelt key is an error that helps.
Problems check_json(const LayerType& type, const LayerExample& example);

}  // namespace layup
