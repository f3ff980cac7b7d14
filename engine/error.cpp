// SPDX-License-Identifier: Apache-2.0
#include "engine/error.h"

namespace layup::detail {

void assertion_failed(const char* condition, const char* file, int line) {
  throw std::logic_error(std::string("internal error: ") + condition + " does not hold (" + file +
                         ":" + std::to_string(line) + ")");
}

}  // namespace layup::detail
