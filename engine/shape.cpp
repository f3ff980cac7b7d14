// SPDX-License-Identifier: Apache-2.0
#include "engine/shape.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "engine/error.h"

namespace layup {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array<Unit, 9> kUnits = {{{"B", 1},
                                         {"KiB", 1024},
                                         {"MiB", 1048576},
                                         {"GiB", 1073741824},
                                         {"TiB", 1099511627776},
                                         {"KB", 1e3},
                                         {"MB", 1e6},
                                         {"GB", 1e9},
                                         {"TB", 1e12}}};

}  // namespace

std::int64_t checked_multiply(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result))
    throw GraphError("size overflow: " + std::to_string(a) + " x " + std::to_string(b) +
                     " does not fit into 63 bits");
  return result;
}

std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result))
    throw GraphError("size overflow: " + std::to_string(a) + " + " + std::to_string(b) +
                     " does not fit into 63 bits");
  return result;
}

std::int64_t num_elements(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t dim : shape) count = checked_multiply(count, dim);
  return count;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::int64_t parse_bytes(std::string_view text) {
  const auto fail = [&]() -> std::int64_t {
    throw ConfigError("\"" + std::string(text) +
                      "\" is not an amount of memory; write a number with a unit, as 700MiB, 2GB, "
                      "1.5GiB, or a bare number of bytes");
  };
  double amount = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), amount);
  if (error != std::errc() || !std::isfinite(amount) || amount < 0) return fail();
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  double factor = unit.empty() ? 1 : 0;
  for (const Unit& known : kUnits)
    if (known.name == unit) factor = known.bytes;
  const double bytes = amount * factor;
  if (factor == 0 || bytes >= static_cast<double>(std::numeric_limits<std::int64_t>::max()))
    return fail();
  if (factor == 1 && bytes != std::floor(bytes)) return fail();
  return static_cast<std::int64_t>(bytes);
}

std::string format_bytes(std::int64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  const std::array<std::string_view, 4> names = {"KiB", "MiB", "GiB", "TiB"};
  double amount = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (amount >= 1024 && unit + 1 < names.size()) {
    amount /= 1024;
    ++unit;
  }
  std::array<char, 32> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), amount,
                                    std::chars_format::fixed, amount < 100 ? 2 : 1);
  return std::string(buffer.data(), result.ptr) + " " + std::string(names[unit]);
}

}  // namespace layup
