// SPDX-License-Identifier: Apache-2.0
// Linked where there is no liburing.
#include "engine/device/file_tier.h"

namespace layup {

bool has_uring() { return false; }

std::unique_ptr<IoQueue> make_uring_queue(int /*file*/, IoDirection /*direction*/,
                                          std::string& refusal) {
  refusal = "this build has no liburing";
  return nullptr;
}

}  // namespace layup
