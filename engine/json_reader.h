// SPDX-License-Identifier: Apache-2.0
// Strict reading of JSON objects: every field is checked where it stands, unknown keys are errors
// with a suggestion, and all errors of a file are reported in one go.
//
//   JsonErrors errors("net.json");
//   JsonReader layer(node, "/layers/3", errors);
//   const auto kernel = layer.require_int("kernel", {1, 1024});
//   layer.finish();            // reports keys that nobody asked for
//   errors.throw_if_any();     // one ConfigError with a line per error
//
// After an error a getter returns a harmless value (the default, or the lower bound), so that
// reading can go on.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/error.h"
#include "engine/json_node.h"

namespace layup {

// Gathers "file:line:column: message (at /json/pointer)" lines.
class JsonErrors {
 public:
  explicit JsonErrors(std::string file_name) : file_name_(std::move(file_name)) {}
  void add(const JsonNode* where, const std::string& pointer, const std::string& message);
  void add_at_key(const JsonMember& where, const std::string& pointer, const std::string& message);
  void append(const JsonErrors& of_another_file);
  void append(const ConfigError& of_another_file);
  // Where values come from that do not stand in the file: said with every error at or below
  // `pointer` that has no position.
  void note_origin(std::string pointer, std::string origin);
  bool empty() const { return lines_.empty(); }
  const std::vector<std::string>& lines() const { return lines_; }
  const std::string& file_name() const { return file_name_; }
  void throw_if_any() const;  // ConfigError

 private:
  void add_line(std::int32_t line, std::int32_t column, const std::string& pointer,
                const std::string& message);

  std::string file_name_;
  std::vector<std::string> lines_;
  std::vector<std::pair<std::string, std::string>> origins_;  // by pointer
};

struct IntRange {
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};

struct NumberRange {
  double min = -std::numeric_limits<double>::max();
  double max = std::numeric_limits<double>::max();
  bool min_excluded = false;
  bool max_excluded = false;
};

using Choices = std::initializer_list<std::string_view>;

class JsonReader {
 public:
  // `node` must outlive the reader. A node that is not an object is reported at once.
  JsonReader(const JsonNode& node, std::string pointer, JsonErrors& errors);

  bool has(std::string_view key);

  std::int64_t require_int(std::string_view key, IntRange range = {});
  std::int64_t get_int(std::string_view key, std::int64_t otherwise, IntRange range = {});
  double require_number(std::string_view key, NumberRange range = {});
  double get_number(std::string_view key, double otherwise, NumberRange range = {});
  bool get_bool(std::string_view key, bool otherwise);
  std::string require_string(std::string_view key);
  std::string get_string(std::string_view key, std::string otherwise);
  std::string require_choice(std::string_view key, std::span<const std::string> choices);
  std::string get_choice(std::string_view key, std::string otherwise, Choices choices);
  // "256MiB" or a bare number of bytes.
  std::optional<std::int64_t> get_bytes(std::string_view key);
  // A number, or a list of exactly `count` of them: 3 and [3, 3] are the same kernel.
  std::vector<std::int64_t> require_ints(std::string_view key, std::size_t count, IntRange range);
  std::vector<std::int64_t> get_ints(std::string_view key, std::size_t count,
                                     std::int64_t otherwise, IntRange range);
  // Lists of any length (empty if absent).
  std::vector<std::int64_t> get_int_list(std::string_view key, IntRange range = {});
  std::vector<double> get_number_list(std::string_view key, NumberRange range = {});
  std::vector<std::string> get_string_list(std::string_view key);
  // Sub-objects; absent and mistyped ones give nullopt (the latter with an error).
  std::optional<JsonReader> get_object(std::string_view key);
  std::vector<JsonReader> get_object_list(std::string_view key);
  // The node itself, marked as read.
  const JsonNode* get_node(std::string_view key);

  // Reports `message` at the value of `key`, or at the object if `key` is absent or empty.
  void fail(std::string_view key, const std::string& message);
  // Reports every key that was never asked for, with the nearest known one.
  void finish();

  const JsonNode& node() const { return *node_; }
  const std::string& pointer() const { return pointer_; }
  JsonErrors& errors() const { return *errors_; }

 private:
  const JsonNode* lookup(std::string_view key);
  const JsonNode* lookup_required(std::string_view key);
  std::int64_t read_int(const JsonNode& node, const std::string& pointer, IntRange range,
                        std::int64_t otherwise);
  double read_number(const JsonNode& node, const std::string& pointer, NumberRange range,
                     double otherwise);
  std::string pointer_to(std::string_view key) const;

  const JsonNode* node_;
  std::string pointer_;
  JsonErrors* errors_;
  std::vector<std::string> asked_;
  std::vector<std::string> reported_;  // misspelt required keys
};

// The candidate nearest to `word` by edit distance, if near enough to be a slip of the fingers.
std::optional<std::string> did_you_mean(std::string_view word,
                                        std::span<const std::string> candidates);
// For unknown values: "; did you mean \"x\"?; known: x, y, z", the first part if one is near.
std::string suggestion(std::string_view word, std::span<const std::string> candidates);
// For unknown keys, of which there may be many: the list only if none is near.
std::string key_suggestion(std::string_view word, std::span<const std::string> candidates);

}  // namespace layup
