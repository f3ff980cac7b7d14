// SPDX-License-Identifier: Apache-2.0
// Shapes, checked 64-bit size arithmetic, and byte counts as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace layup {

// Dimensions, outermost first: [N, C, H, W], weights [K, C/groups, R, S] or [out, in].
using Shape = std::vector<std::int64_t>;

// Both throw GraphError when the result does not fit into 63 bits.
std::int64_t checked_multiply(std::int64_t a, std::int64_t b);
std::int64_t checked_add(std::int64_t a, std::int64_t b);

// Product of the dimensions; 1 for a scalar. Throws GraphError on overflow.
std::int64_t num_elements(const Shape& shape);

std::string to_string(const Shape& shape);  // "[8, 3, 224, 224]"

// "700MiB", "2GB", "64 KiB", "1.5GiB", or a bare number of bytes. Throws ConfigError for anything
// else, and for negative or overflowing amounts.
std::int64_t parse_bytes(std::string_view text);

std::string format_bytes(std::int64_t bytes);  // "1.25 GiB"; exact below 1 KiB

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace layup
