// SPDX-License-Identifier: Apache-2.0
// What a tensor is (type and shape). Where it lies is the memory plan's business.
#pragma once

#include <cstdint>
#include <string>

#include "engine/shape.h"

namespace layup {

enum class DType : std::uint8_t { f32, i32, u8 };

constexpr std::int64_t size_bytes(DType type) { return type == DType::u8 ? 1 : 4; }
const char* to_string(DType type);

struct TensorSpec {
  Shape shape;
  DType dtype = DType::f32;

  bool operator==(const TensorSpec&) const = default;
};

std::int64_t num_bytes(const TensorSpec& spec);  // throws GraphError on overflow
std::string to_string(const TensorSpec& spec);   // "f32[8, 64, 56, 56]"

}  // namespace layup
