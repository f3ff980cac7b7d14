// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor.h"

namespace layup {

const char* to_string(DType type) {
  switch (type) {
    case DType::f32: return "f32";
    case DType::i32: return "i32";
    case DType::u8: return "u8";
  }
  return "?";
}

std::int64_t num_bytes(const TensorSpec& spec) {
  return checked_multiply(num_elements(spec.shape), size_bytes(spec.dtype));
}

std::string to_string(const TensorSpec& spec) {
  return std::string(to_string(spec.dtype)) + to_string(spec.shape);
}

}  // namespace layup
