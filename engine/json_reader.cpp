// SPDX-License-Identifier: Apache-2.0
#include "engine/json_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "engine/error.h"
#include "engine/shape.h"

namespace layup {
namespace {

std::string shortest(double value) {
  std::array<char, 32> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), result.ptr};
}

// 8 as 8.0: what makes it no whole number.
std::string with_point(std::string number) {
  return number.find_first_of(".en") == std::string::npos ? number + ".0" : number;
}

std::string join(std::span<const std::string> words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// Damerau-Levenshtein with adjacent transpositions.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before;
  std::vector<std::size_t> previous(b.size() + 1);
  std::vector<std::size_t> current(b.size() + 1);
  std::iota(previous.begin(), previous.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, substitute});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
    }
    before = previous;
    std::swap(previous, current);
  }
  return previous[b.size()];
}

}  // namespace

void JsonErrors::add_line(std::int32_t line, std::int32_t column, const std::string& pointer,
                          const std::string& message) {
  std::string text = file_name_;
  if (line > 0) text += ":" + std::to_string(line) + ":" + std::to_string(column);
  text += ": " + message + " (at " + (pointer.empty() ? "/" : pointer) + ")";
  const auto holds = [&](const auto& origin) {
    return pointer == origin.first || pointer.starts_with(origin.first + "/");
  };
  // The newest counts: a later one replaces what an earlier one set.
  const auto origin = std::find_if(origins_.rbegin(), origins_.rend(), holds);
  if (line == 0 && origin != origins_.rend()) text += " (from " + origin->second + ")";
  lines_.push_back(std::move(text));
}

void JsonErrors::add(const JsonNode* where, const std::string& pointer,
                     const std::string& message) {
  add_line(where == nullptr ? 0 : where->line, where == nullptr ? 0 : where->column, pointer,
           message);
}

void JsonErrors::add_at_key(const JsonMember& where, const std::string& pointer,
                            const std::string& message) {
  add_line(where.key_line, where.key_column, pointer, message);
}

void JsonErrors::note_origin(std::string pointer, std::string origin) {
  origins_.emplace_back(std::move(pointer), std::move(origin));
}

void JsonErrors::append(const ConfigError& of_another_file) {
  lines_.emplace_back(of_another_file.what());
}

void JsonErrors::append(const JsonErrors& of_another_file) {
  lines_.insert(lines_.end(), of_another_file.lines_.begin(), of_another_file.lines_.end());
}

void JsonErrors::throw_if_any() const {
  if (lines_.empty()) return;
  std::string text;
  for (const std::string& line : lines_) text += (text.empty() ? "" : "\n") + line;
  throw ConfigError(text);
}

JsonReader::JsonReader(const JsonNode& node, std::string pointer, JsonErrors& errors)
    : node_(&node), pointer_(std::move(pointer)), errors_(&errors) {
  if (node.object() == nullptr)
    errors.add(&node, pointer_, std::string("expected an object, found ") + node.type_name());
}

std::string JsonReader::pointer_to(std::string_view key) const {
  return key.empty() ? pointer_ : child_pointer(pointer_, key);
}

const JsonNode* JsonReader::lookup(std::string_view key) {
  if (std::find(asked_.begin(), asked_.end(), key) == asked_.end()) asked_.emplace_back(key);
  return node_->find(key);
}

const JsonNode* JsonReader::lookup_required(std::string_view key) {
  const JsonNode* found = lookup(key);
  if (found != nullptr || node_->object() == nullptr) return found;
  // Rather its misspelling than its absence.
  const std::string wanted[] = {std::string(key)};
  for (const JsonMember& member : *node_->object()) {
    const std::string& name = member.first;
    const bool is_asked = std::find(asked_.begin(), asked_.end(), name) != asked_.end();
    if (is_asked || !did_you_mean(name, wanted)) continue;
    errors_->add_at_key(member, pointer_to(name),
                        "unknown key \"" + name + "\"" + key_suggestion(name, wanted));
    reported_.push_back(name);
    return nullptr;
  }
  fail("", "\"" + std::string(key) + "\" is missing");
  return nullptr;
}

bool JsonReader::has(std::string_view key) { return lookup(key) != nullptr; }

std::int64_t JsonReader::read_int(const JsonNode& node, const std::string& pointer, IntRange range,
                                  std::int64_t otherwise) {
  const auto* value = std::get_if<std::int64_t>(&node.value);
  if (value == nullptr) {
    const auto* fraction = std::get_if<double>(&node.value);
    errors_->add(&node, pointer,
                 "expected a whole number, found " + (fraction == nullptr
                                                          ? std::string(node.type_name())
                                                          : with_point(shortest(*fraction))));
    return otherwise;
  }
  if (*value >= range.min && *value <= range.max) return *value;
  const bool open = range.max == std::numeric_limits<std::int64_t>::max();
  errors_->add(&node, pointer,
               std::to_string(*value) + " is out of range; " +
                   (open ? "the least value is " + std::to_string(range.min)
                         : "values go from " + std::to_string(range.min) + " to " +
                               std::to_string(range.max)));
  return otherwise;
}

double JsonReader::read_number(const JsonNode& node, const std::string& pointer, NumberRange range,
                               double otherwise) {
  double value = 0;
  if (const auto* whole = std::get_if<std::int64_t>(&node.value)) {
    value = static_cast<double>(*whole);
  } else if (const auto* number = std::get_if<double>(&node.value)) {
    value = *number;
  } else {
    errors_->add(&node, pointer, std::string("expected a number, found ") + node.type_name());
    return otherwise;
  }
  const bool below = range.min_excluded ? value <= range.min : value < range.min;
  const bool above = range.max_excluded ? value >= range.max : value > range.max;
  if (!below && !above && std::isfinite(value)) return value;
  const auto bound = [](double limit, bool excluded, const char* word) {
    if (std::abs(limit) == std::numeric_limits<double>::max()) return std::string();
    return std::string(" ") + word + (excluded ? " " : " or equal to ") + shortest(limit);
  };
  const std::string least = bound(range.min, range.min_excluded, "greater than");
  const std::string most = bound(range.max, range.max_excluded, "less than");
  errors_->add(&node, pointer,
               shortest(value) + " is out of range; it must be" + least +
                   (least.empty() || most.empty() ? "" : " and") + most);
  return otherwise;
}

std::int64_t JsonReader::require_int(std::string_view key, IntRange range) {
  const std::int64_t harmless = std::max<std::int64_t>(range.min, 1);
  const JsonNode* found = lookup_required(key);
  return found == nullptr ? harmless : read_int(*found, pointer_to(key), range, harmless);
}

std::int64_t JsonReader::get_int(std::string_view key, std::int64_t otherwise, IntRange range) {
  const JsonNode* found = lookup(key);
  return found == nullptr ? otherwise : read_int(*found, pointer_to(key), range, otherwise);
}

double JsonReader::require_number(std::string_view key, NumberRange range) {
  const JsonNode* found = lookup_required(key);
  const double harmless = std::max(range.min, 0.0);
  return found == nullptr ? harmless : read_number(*found, pointer_to(key), range, harmless);
}

double JsonReader::get_number(std::string_view key, double otherwise, NumberRange range) {
  const JsonNode* found = lookup(key);
  return found == nullptr ? otherwise : read_number(*found, pointer_to(key), range, otherwise);
}

bool JsonReader::get_bool(std::string_view key, bool otherwise) {
  const JsonNode* found = lookup(key);
  if (found == nullptr) return otherwise;
  if (const bool* value = std::get_if<bool>(&found->value)) return *value;
  fail(key, std::string("expected true or false, found ") + found->type_name());
  return otherwise;
}

std::string JsonReader::require_string(std::string_view key) {
  return lookup_required(key) == nullptr ? "" : get_string(key, "");
}

std::string JsonReader::get_string(std::string_view key, std::string otherwise) {
  const JsonNode* found = lookup(key);
  if (found == nullptr) return otherwise;
  if (const auto* value = std::get_if<std::string>(&found->value)) return *value;
  fail(key, std::string("expected a string, found ") + found->type_name());
  return otherwise;
}

std::string JsonReader::require_choice(std::string_view key, std::span<const std::string> choices) {
  const std::size_t errors_before = errors_->lines().size();
  std::string value = require_string(key);
  if (errors_->lines().size() > errors_before) return choices.empty() ? "" : choices[0];
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return value;
  fail(key, "unknown value \"" + value + "\"" + suggestion(value, choices));
  return choices.empty() ? "" : choices[0];
}

std::string JsonReader::get_choice(std::string_view key, std::string otherwise, Choices choices) {
  if (lookup(key) == nullptr) return otherwise;
  const std::vector<std::string> list(choices.begin(), choices.end());
  return require_choice(key, list);
}

std::optional<std::int64_t> JsonReader::get_bytes(std::string_view key) {
  const JsonNode* found = lookup(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* text = std::get_if<std::string>(&found->value)) {
    try {
      return parse_bytes(*text);
    } catch (const ConfigError& error) {
      fail(key, error.what());
      return std::nullopt;
    }
  }
  if (std::holds_alternative<std::int64_t>(found->value))
    return read_int(*found, pointer_to(key), {.min = 0}, 0);
  fail(key, std::string("expected an amount of memory as \"256MiB\" or a whole number of bytes, "
                        "found ") +
                found->type_name());
  return std::nullopt;
}

std::vector<std::int64_t> JsonReader::require_ints(std::string_view key, std::size_t count,
                                                   IntRange range) {
  const std::int64_t harmless = std::max<std::int64_t>(range.min, 1);
  if (lookup_required(key) == nullptr) return std::vector<std::int64_t>(count, harmless);
  return get_ints(key, count, harmless, range);
}

std::vector<std::int64_t> JsonReader::get_ints(std::string_view key, std::size_t count,
                                               std::int64_t otherwise, IntRange range) {
  const JsonNode* found = lookup(key);
  if (found == nullptr) return std::vector<std::int64_t>(count, otherwise);
  const JsonNode::Array* list = found->array();
  if (list == nullptr)
    return std::vector<std::int64_t>(count, read_int(*found, pointer_to(key), range, otherwise));
  if (list->size() == count) return get_int_list(key, range);
  fail(key, "expected a whole number or a list of " + std::to_string(count) + ", found a list of " +
                std::to_string(list->size()));
  return std::vector<std::int64_t>(count, otherwise);
}

std::vector<std::int64_t> JsonReader::get_int_list(std::string_view key, IntRange range) {
  std::vector<std::int64_t> values;
  const JsonNode* found = lookup(key);
  if (found == nullptr) return values;
  if (found->array() == nullptr) {
    fail(key, std::string("expected a list of whole numbers, found ") + found->type_name());
    return values;
  }
  for (const JsonNode& item : *found->array())
    values.push_back(read_int(item, pointer_to(key) + "/" + std::to_string(values.size()), range,
                              std::max<std::int64_t>(range.min, 1)));
  return values;
}

std::vector<double> JsonReader::get_number_list(std::string_view key, NumberRange range) {
  std::vector<double> values;
  const JsonNode* found = lookup(key);
  if (found == nullptr) return values;
  if (found->array() == nullptr) {
    fail(key, std::string("expected a list of numbers, found ") + found->type_name());
    return values;
  }
  for (const JsonNode& item : *found->array())
    values.push_back(read_number(item, pointer_to(key) + "/" + std::to_string(values.size()), range,
                                 std::max(range.min, 0.0)));
  return values;
}

std::vector<std::string> JsonReader::get_string_list(std::string_view key) {
  std::vector<std::string> values;
  const JsonNode* found = lookup(key);
  if (found == nullptr) return values;
  bool good = found->array() != nullptr;
  if (good)
    for (const JsonNode& item : *found->array()) {
      const auto* text = std::get_if<std::string>(&item.value);
      good = good && text != nullptr;
      if (text != nullptr) values.push_back(*text);
    }
  if (!good) fail(key, "expected a list of strings");
  return values;
}

std::optional<JsonReader> JsonReader::get_object(std::string_view key) {
  const JsonNode* found = lookup(key);
  if (found == nullptr) return std::nullopt;
  JsonReader reader(*found, pointer_to(key), *errors_);
  if (found->object() == nullptr) return std::nullopt;
  return reader;
}

std::vector<JsonReader> JsonReader::get_object_list(std::string_view key) {
  std::vector<JsonReader> readers;
  const JsonNode* found = lookup(key);
  if (found == nullptr) return readers;
  if (found->array() == nullptr) {
    fail(key, std::string("expected a list of objects, found ") + found->type_name());
    return readers;
  }
  std::size_t position = 0;
  for (const JsonNode& item : *found->array()) {
    JsonReader reader(item, pointer_to(key) + "/" + std::to_string(position++), *errors_);
    if (item.object() != nullptr) readers.push_back(std::move(reader));
  }
  return readers;
}

const JsonNode* JsonReader::get_node(std::string_view key) { return lookup(key); }

void JsonReader::fail(std::string_view key, const std::string& message) {
  const JsonNode* found = key.empty() ? nullptr : node_->find(key);
  errors_->add(found == nullptr ? node_ : found, found == nullptr ? pointer_ : pointer_to(key),
               message);
}

void JsonReader::finish() {
  if (node_->object() == nullptr) return;
  for (const JsonMember& member : *node_->object()) {
    const std::string& name = member.first;
    if (std::find(asked_.begin(), asked_.end(), name) == asked_.end() &&
        std::find(reported_.begin(), reported_.end(), name) == reported_.end())
      errors_->add_at_key(member, pointer_to(name),
                          "unknown key \"" + name + "\"" + key_suggestion(name, asked_));
  }
}

std::optional<std::string> did_you_mean(std::string_view word,
                                        std::span<const std::string> candidates) {
  std::optional<std::string> best;
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::string suggestion(std::string_view word, std::span<const std::string> candidates) {
  const auto near = did_you_mean(word, candidates);
  return (near ? "; did you mean \"" + *near + "\"?" : "") +
         (candidates.empty() ? "" : "; known: " + join(candidates));
}

std::string key_suggestion(std::string_view word, std::span<const std::string> candidates) {
  const auto near = did_you_mean(word, candidates);
  return near ? "; did you mean \"" + *near + "\"?" : suggestion(word, candidates);
}

}  // namespace layup
