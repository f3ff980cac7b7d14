// SPDX-License-Identifier: Apache-2.0
// `caffe`: the baseline of the published percentages, for accounting.
//
// Every tensor has a data and a gradient buffer of its own, ReLU is not in place, every convolution
// has a private workspace of 24 MiB (three passes under cuDNN's 8 MiB limit in BVLC Caffe's
// cudnn_conv_layer), and nothing is used again.
//
// Departures: gradients that this engine keeps apart (one per reader) are real here; where Caffe
// would have a buffer that this engine does without, the bytes are counted and stay unused.
#include <algorithm>

#include "memory/policy.h"

namespace layup {
namespace {

constexpr std::int64_t kConvWorkspaceBytes = std::int64_t{24} << 20;

Decisions decide(const PolicyInput& input, int /*variant*/, int /*level*/) {
  std::int64_t rule = 0;
  std::int64_t ours = 0;
  for (const PhysicalValue& value : input.graph.values) {
    if (value.kind == ValueKind::activation || value.kind == ValueKind::input)
      rule += 2 * value.bytes;
    if (value.kind == ValueKind::activation || value.kind == ValueKind::input ||
        value.kind == ValueKind::gradient || value.kind == ValueKind::saved ||
        value.kind == ValueKind::carry)
      ours += value.bytes;
  }
  std::int64_t workspace = 0;
  for (const PhysicalOperation& op : input.graph.operations) {
    workspace += op.workspace_bytes;  // nothing is used again, so each has its own
    if (op.cost_kind == CostKind::conv && op.kind == OpKind::layer && op.pass == Pass::forward)
      rule += kConvWorkspaceBytes;
  }
  Decisions decisions;
  decisions.retention = keep_candidates(input);
  decisions.updates_inside_backward = false;
  decisions.in_place = false;
  decisions.reuse = false;
  decisions.accounting_bytes = std::max<std::int64_t>(0, rule - ours - workspace);
  return decisions;
}

}  // namespace

Policy caffe_policy() {
  Policy policy;
  policy.name = "caffe";
  policy.summary = "a data and a gradient buffer for every tensor (for accounting)";
  policy.weighs_costs = false;
  policy.decide = decide;
  return policy;
}

}  // namespace layup
