// SPDX-License-Identifier: Apache-2.0
// `none`: everything that backward reads stays on the device; lifetimes and packing do the rest.
#include "memory/policy.h"

namespace layup {

Policy none_policy() {
  return {"none", "everything stays on the device",
          [](const PolicyInput& /*input*/) { return Decisions{}; }};
}

}  // namespace layup
