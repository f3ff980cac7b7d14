// SPDX-License-Identifier: Apache-2.0
#include "memory/value_uses.h"

namespace layup {
namespace {

bool is_forward(const PhysicalOperation& op) {
  return op.kind == OpKind::load || ((op.kind == OpKind::layer || op.kind == OpKind::reorder) &&
                                     (op.pass == Pass::forward || op.pass == Pass::evaluate));
}

}  // namespace

ValueUses find_uses(const PhysicalGraph& graph) {
  ValueUses uses;
  uses.of.resize(graph.values.size());
  uses.first_backward = static_cast<std::int32_t>(graph.operations.size());
  for (std::size_t i = 0; i < graph.operations.size(); ++i) {
    const PhysicalOperation& op = graph.operations[i];
    const auto at = static_cast<std::int32_t>(i);
    const bool forward = is_forward(op);
    if (!forward && uses.first_backward > at) uses.first_backward = at;
    for (const ValueId value : op.reads) {
      ValueUse& use = uses.of[index(value)];
      if (forward) {
        use.last_forward_use = at;
      } else {
        ++use.num_backward_uses;
        if (use.first_backward_use < 0) use.first_backward_use = at;
      }
    }
    for (const ValueId value : op.writes) {
      if (is_persistent(graph.value(value).kind)) continue;
      uses.of[index(value)].producer = at;
      if (forward) uses.of[index(value)].last_forward_use = at;
    }
  }
  for (std::size_t i = 0; i < graph.replays.size(); ++i)
    for (const ValueId value : graph.replays[i].writes)
      uses.of[index(value)].replay = static_cast<std::int32_t>(i);
  for (std::int32_t i = 0; i < uses.first_backward; ++i)
    for (const ValueId value : graph.operations[static_cast<std::size_t>(i)].writes)
      if (uses.at(value).producer == i && uses.at(value).num_backward_uses > 0)
        uses.candidates.push_back(value);
  return uses;
}

}  // namespace layup
