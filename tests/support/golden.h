// SPDX-License-Identifier: Apache-2.0
// Reads reference values (tests/golden/README.md describes the files).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/json_node.h"
#include "engine/shape.h"

namespace layup {

// Element i of the random tensor with this seed: in [-1, 1), exact in float32.
double golden_u(std::uint64_t seed, std::uint64_t i);

struct GoldenTensor {
  Shape shape;
  std::vector<float> values;
};

// $LAYUP_GOLDEN_DIR if set and not empty, else tests/golden.
std::filesystem::path golden_dir();
// The "cases" of dir / file. Throws DataError when the folder, the file or every case is missing.
std::vector<JsonNode> read_golden_cases(const std::filesystem::path& dir, const std::string& file);

// Access to members that must be there; all throw DataError that names the key.
const JsonNode& golden_member(const JsonNode& object, const std::string& key);
std::string golden_string(const JsonNode& object, const std::string& key);
double golden_number(const JsonNode& node);
std::vector<double> golden_numbers(const JsonNode& node);
Shape golden_shape(const JsonNode& node);
// {"seed", "shape", "scale", "shift"}, spelt out.
GoldenTensor expand_golden(const JsonNode& node);

// Empty if max |found - expected| <= tolerance * max |expected|; otherwise what is wrong, with
// `name` in front. Counts that differ and NaN are wrong.
std::string compare_golden(const std::string& name, std::span<const float> found,
                           const std::vector<double>& expected, double tolerance);

}  // namespace layup
