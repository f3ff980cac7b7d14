// SPDX-License-Identifier: Apache-2.0
#include "tests/support/golden.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "engine/error.h"
#include "engine/rng.h"

namespace layup {
namespace {

std::string text(double value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), end.ptr};
}

std::int64_t whole(const JsonNode& node) {
  const auto* value = std::get_if<std::int64_t>(&node.value);
  if (value == nullptr)
    throw DataError(std::string("expected a whole number, found ") + node.type_name());
  return *value;
}

}  // namespace

double golden_u(std::uint64_t seed, std::uint64_t i) {
  return static_cast<double>(mix((seed << 32U) + i) >> 40U) / 0x1p23 - 1;
}

std::filesystem::path golden_dir() {
  const char* dir = std::getenv("LAYUP_GOLDEN_DIR");
  return dir != nullptr && *dir != '\0' ? dir : "tests/golden";
}

std::vector<JsonNode> read_golden_cases(const std::filesystem::path& dir, const std::string& file) {
  if (!std::filesystem::is_directory(dir))
    throw DataError("the folder of golden files " + dir.string() + " does not exist");
  if (!std::filesystem::is_regular_file(dir / file))
    throw DataError("the folder of golden files " + dir.string() + " has no " + file);
  const JsonNode root = read_json_file(dir / file);
  const JsonNode::Array* cases = golden_member(root, "cases").array();
  if (cases == nullptr || cases->empty()) throw DataError((dir / file).string() + " has no cases");
  return *cases;
}

const JsonNode& golden_member(const JsonNode& object, const std::string& key) {
  const JsonNode* found = object.find(key);
  if (found == nullptr) throw DataError("the golden case has no \"" + key + "\"");
  return *found;
}

std::string golden_string(const JsonNode& object, const std::string& key) {
  const auto* value = std::get_if<std::string>(&golden_member(object, key).value);
  if (value == nullptr) throw DataError("\"" + key + "\" of the golden case is no string");
  return *value;
}

double golden_number(const JsonNode& node) {
  if (const auto* number = std::get_if<double>(&node.value)) return *number;
  return static_cast<double>(whole(node));
}

std::vector<double> golden_numbers(const JsonNode& node) {
  std::vector<double> numbers;
  if (node.array() == nullptr)
    throw DataError(std::string("expected a list of numbers, found ") + node.type_name());
  for (const JsonNode& item : *node.array()) numbers.push_back(golden_number(item));
  return numbers;
}

Shape golden_shape(const JsonNode& node) {
  Shape shape;
  if (node.array() == nullptr)
    throw DataError(std::string("expected a shape, found ") + node.type_name());
  for (const JsonNode& item : *node.array()) shape.push_back(whole(item));
  return shape;
}

GoldenTensor expand_golden(const JsonNode& node) {
  const auto seed = static_cast<std::uint64_t>(whole(golden_member(node, "seed")));
  const JsonNode* scale = node.find("scale");
  const JsonNode* shift = node.find("shift");
  const double factor = scale == nullptr ? 1 : golden_number(*scale);
  const double offset = shift == nullptr ? 0 : golden_number(*shift);
  GoldenTensor tensor{golden_shape(golden_member(node, "shape")), {}};
  tensor.values.resize(static_cast<std::size_t>(num_elements(tensor.shape)));
  for (std::size_t i = 0; i < tensor.values.size(); ++i)
    tensor.values[i] = static_cast<float>(golden_u(seed, i) * factor + offset);
  return tensor;
}

std::string compare_golden(const std::string& name, std::span<const float> found,
                           const std::vector<double>& expected, double tolerance) {
  if (found.size() != expected.size())
    return name + " has " + std::to_string(found.size()) + " elements instead of " +
           std::to_string(expected.size());
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  std::string worst;
  double worst_difference = tolerance * largest;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double difference = std::abs(found[i] - expected[i]);
    if (difference <= worst_difference) continue;  // false for NaN
    worst = name + "[" + std::to_string(i) + "] is " + text(found[i]) + " instead of " +
            text(expected[i]) + ", over " + text(tolerance) + " of the largest magnitude " +
            text(largest);
    if (std::isnan(difference)) break;
    worst_difference = difference;
  }
  return worst;
}

}  // namespace layup
