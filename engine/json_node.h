// SPDX-License-Identifier: Apache-2.0
// A JSON value that remembers where it stood, keeps the order of members and refuses duplicates.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace layup {

// Output is made with nlohmann's ordered JSON; input is read through JsonNode.
using Json = nlohmann::ordered_json;

struct JsonMember;

struct JsonNode {
  using Array = std::vector<JsonNode>;
  using Object = std::vector<JsonMember>;

  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object> value;
  // 1-based position of the value in its text; 0 for a value that did not come from a file.
  std::int32_t line = 0;
  std::int32_t column = 0;

  const Object* object() const { return std::get_if<Object>(&value); }
  const Array* array() const { return std::get_if<Array>(&value); }
  const JsonNode* find(std::string_view key) const;  // null if absent or not an object
  JsonNode* find(std::string_view key);
  const char* type_name() const;  // "a whole number", "a string", ...
  Json to_json() const;

  static JsonNode from(const Json& json);  // without positions
};

// Not a std::pair: that asks its types for properties while JsonNode is still incomplete.
struct JsonMember {
  JsonMember(std::string key, JsonNode node) : first(std::move(key)), second(std::move(node)) {}
  std::string first;  // the key
  JsonNode second;
  // As the value's line and column: where the key stands.
  std::int32_t key_line = 0;
  std::int32_t key_column = 0;
};

// One step further down: "/a" and "b/c" give "/a/b~1c" (RFC 6901).
std::string child_pointer(const std::string& pointer, std::string_view key);

// Throws ConfigError "file:line:column: ..." for syntax errors, duplicate keys, integers that do
// not fit into 64 bits, and nesting deeper than 64 levels.
JsonNode parse_json(std::string_view text, const std::string& file_name);
// Throws ConfigError when the file cannot be read; otherwise as parse_json.
JsonNode read_json_file(const std::filesystem::path& path);

}  // namespace layup
