// SPDX-License-Identifier: Apache-2.0
// `layrub`: transfers only. The gradient of an activation lies over it, and a few shared blocks
// hold what is on the device.
//
// Source: Jin et al. 2018, "Layer-centric memory reuse and data migration for extreme-scale deep
// learning on many-core architectures", TACO 15(3), doi:10.1145/3243904, and its release in Caffe.
//   - Intra-layer: the filter gradient of a layer comes before its data gradient, which then may
//     take the bytes of the layer's input. This engine's order is the same, so that lifetimes give
//     it.
//   - Inter-layer: the input of a layer goes to the host once its last reader has run, beside that
//     reader, and comes back beside the two layers of backward before the one that reads it; both
//     streams meet at the end of every layer. What is on the device lies in shared blocks: here, in
//     one packed arena, which needs as much as the blocks that are in use at the same time.
//   - Parameter gradients are whole: updates come after backward.
//
// What the release has on the device besides, and this engine has no use for, is counted:
//   - two buffers for inputs of splits (tensors that several layers read) and two for their
//     gradients, each for the largest;
//   - one buffer each for batch norm's temporary, its normalised input and the gradient of that,
//     and for the scale layer's temporary;
//   - signs of ReLU, a byte each (a bit here);
//   - per convolution, three handles with their streams and a private workspace: 2.6 MiB, the slope
//     of the published table of depths once parameters are taken off;
//   - the context with its libraries, 128 MiB, so that the table's smallest network agrees.
//
// Departures: batch norm's normalised input is not offloaded, since backward here reads x; nor is
// scale's temporary. So less is transferred than was there.
#include <algorithm>

#include "memory/policy.h"

namespace layup {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kContextBytes = 128 * kMiB;
constexpr std::int64_t kConvBytes = 26 * kMiB / 10;
constexpr int kSplitBuffers = 4;
constexpr int kNormBuffers = 4;

std::int64_t largest_output(const PolicyInput& input, const PhysicalOperation& op) {
  std::int64_t bytes = 0;
  for (const ValueId value : op.writes)
    if (input.graph.value(value).kind == ValueKind::activation)
      bytes = std::max(bytes, input.graph.value(value).bytes);
  return bytes;
}

std::int64_t counted_bytes(const PolicyInput& input) {
  const std::vector<int> num_readers = count_forward_readers(input);
  std::int64_t num_convs = 0;
  std::int64_t split = 0;
  std::int64_t norm = 0;
  std::int64_t signs = 0;
  for (std::int32_t i = 0; i < input.uses.first_backward; ++i) {
    const PhysicalOperation& op = input.graph.operations[static_cast<std::size_t>(i)];
    const std::int64_t bytes = largest_output(input, op);
    if (op.cost_kind == CostKind::conv) ++num_convs;
    const bool is_split = std::any_of(op.writes.begin(), op.writes.end(),
                                      [&](ValueId value) { return num_readers[index(value)] > 1; });
    if (is_split) split = std::max(split, bytes);
    const bool has_statistics = std::any_of(op.writes.begin(), op.writes.end(), [&](ValueId value) {
      return input.graph.value(value).kind == ValueKind::buffer;
    });
    if (has_statistics) norm = std::max(norm, bytes);
    if (op.kind == OpKind::layer && op.cost_kind == CostKind::bandwidth && !has_statistics &&
        !op.in_place.empty() && op.reads.size() == 1)
      signs = std::max(signs, bytes / 4);
  }
  return kContextBytes + num_convs * kConvBytes + kSplitBuffers * split + kNormBuffers * norm +
         signs;
}

Decisions decide(const PolicyInput& input, int /*variant*/, int /*level*/) {
  Decisions decisions;
  decisions.retention = keep_candidates(input);
  decisions.copy_style = CopyStyle::layer_by_layer;
  decisions.look_ahead = 2;
  decisions.updates_inside_backward = false;
  for (const ValueId value : input.uses.candidates)
    if (!is_small(input, value)) decisions.retention[index(value)] = Retention::offload;
  decisions.accounting_bytes = counted_bytes(input);
  return decisions;
}

}  // namespace

Policy layrub_policy() {
  Policy policy;
  policy.name = "layrub";
  policy.summary = "all inputs go to the host, gradients lie over activations";
  policy.decide = decide;
  return policy;
}

}  // namespace layup
