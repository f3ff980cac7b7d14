// SPDX-License-Identifier: Apache-2.0
#include "engine/json_node.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <unordered_set>

#include "engine/error.h"

namespace layup {
namespace {

constexpr std::size_t kMaxDepth = 64;

// Hands the text to nlohmann's lexer byte by byte and counts what it has taken: the only way to
// know where a SAX event stands.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, std::size_t* taken) : at_(at), taken_(taken) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    ++*taken_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  std::size_t* taken_;
};

class TreeBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(std::string_view text, const std::string& file, const std::size_t& taken)
      : text_(text), file_(file), taken_(taken) {}

  JsonNode take_root() { return std::move(root_); }

  bool null() override { return put(nullptr, start_of_word()); }
  bool boolean(bool value) override { return put(value, start_of_word()); }
  bool number_integer(number_integer_t value) override {
    return put(std::int64_t{value}, start_of_word());
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      fail(start_of_word(), std::to_string(value) + " does not fit into a 64-bit integer");
    return put(static_cast<std::int64_t>(value), start_of_word());
  }
  bool number_float(number_float_t value, const string_t& written) override {
    if (written.find_first_of(".eE") == std::string::npos)
      fail(start_of_word(), written + " does not fit into a 64-bit integer");
    return put(double{value}, start_of_word());
  }
  bool string(string_t& value) override { return put(std::move(value), start_of_string()); }
  bool binary(binary_t& /*value*/) override { return false; }

  bool start_object(std::size_t /*size*/) override { return open(JsonNode::Object{}); }
  bool start_array(std::size_t /*size*/) override { return open(JsonNode::Array{}); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    auto& members = std::get<JsonNode::Object>(open_.back()->value);
    const std::size_t start = start_of_string();
    if (is_duplicate(members, name))
      fail(start, "duplicate key \"" + name + "\" (at " + pointer_to(name) + ")");
    JsonMember& member = members.emplace_back(std::move(name), JsonNode{});
    std::tie(member.key_line, member.key_column) = locate(start);
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*last_token*/,
                   const nlohmann::json::exception& error) override {
    std::string what = error.what();
    constexpr int kNumberOverflow = 406;  // "... number overflow parsing '1e400'"
    if (error.id == kNumberOverflow) {
      const std::size_t start = start_of_word();
      const std::size_t size = std::min(taken_, text_.size()) - start;
      const std::string_view written = text_.substr(start, size);
      fail(start, std::string(written.substr(0, written.find_first_not_of("0123456789+-.eE"))) +
                      " does not fit into a 64-bit number");
    }
    const std::size_t detail = what.find("syntax error");
    if (detail != std::string::npos) what = what.substr(detail);
    fail(position == 0 ? 0 : std::min(position - 1, text_.size()), what);
  }

 private:
  // A list is fastest for the usual few members; headers of weight files have tens of thousands.
  bool is_duplicate(const JsonNode::Object& members, const std::string& name) {
    constexpr std::size_t kFew = 32;
    if (members.size() < kFew)
      return std::any_of(members.begin(), members.end(),
                         [&](const auto& member) { return member.first == name; });
    auto& seen = seen_.back();
    if (seen.empty())
      for (const auto& member : members) seen.insert(member.first);
    return !seen.insert(name).second;
  }
  // Of a key of the innermost object.
  std::string pointer_to(const std::string& name) const {
    std::string pointer;
    for (std::size_t i = 0; i + 1 < open_.size(); ++i)
      pointer = child_pointer(pointer, open_[i]->object() != nullptr
                                           ? open_[i]->object()->back().first
                                           : std::to_string(open_[i]->array()->size() - 1));
    return child_pointer(pointer, name);
  }
  [[noreturn]] void fail(std::size_t offset, const std::string& message) const {
    const auto [line, column] = locate(offset);
    throw ConfigError(file_ + ":" + std::to_string(line) + ":" + std::to_string(column) + ": " +
                      message);
  }
  // Line and column of an offset; offsets come in rising order but for errors.
  std::pair<std::int32_t, std::int32_t> locate(std::size_t offset) const {
    if (offset < scanned_) {
      scanned_ = line_start_ = 0;
      line_ = 1;
    }
    for (; scanned_ < offset && scanned_ < text_.size(); ++scanned_)
      if (text_[scanned_] == '\n') {
        ++line_;
        line_start_ = scanned_ + 1;
      }
    return {line_, static_cast<std::int32_t>(offset - line_start_) + 1};
  }
  // The lexer has read the closing quote and nothing more.
  std::size_t start_of_string() const {
    std::size_t at = taken_ - 1;
    while (at > 0) {
      --at;
      if (text_[at] != '"') continue;
      std::size_t backslashes = 0;
      while (backslashes < at && text_[at - 1 - backslashes] == '\\') ++backslashes;
      if (backslashes % 2 == 0) return at;
    }
    return 0;
  }
  // Numbers end one byte after their last digit (or at the end of the text), words at it.
  std::size_t start_of_word() const {
    const auto in_word = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' || c == '+' || c == '.' ||
             c == 'E';
    };
    std::size_t at = std::min(taken_, text_.size());
    while (at > 0 && !in_word(text_[at - 1])) --at;
    while (at > 0 && in_word(text_[at - 1])) --at;
    return at;
  }
  template <typename T>
  bool put(T value, std::size_t offset) {
    JsonNode& node = next_slot();
    node.value = std::move(value);
    std::tie(node.line, node.column) = locate(offset);
    return true;
  }
  template <typename T>
  bool open(T container) {
    if (open_.size() == kMaxDepth) fail(taken_ - 1, "nested deeper than 64 levels");
    JsonNode& node = next_slot();
    node.value = std::move(container);
    std::tie(node.line, node.column) = locate(taken_ - 1);
    open_.push_back(&node);
    seen_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    seen_.pop_back();
    return true;
  }
  JsonNode& next_slot() {
    if (open_.empty()) return root_;
    if (auto* array = std::get_if<JsonNode::Array>(&open_.back()->value))
      return array->emplace_back();
    return std::get<JsonNode::Object>(open_.back()->value).back().second;
  }

  std::string_view text_;
  const std::string& file_;
  const std::size_t& taken_;
  JsonNode root_;
  // Pointers into the tree stay valid: only the innermost container grows.
  std::vector<JsonNode*> open_;
  std::vector<std::unordered_set<std::string>> seen_;  // per open container; empty while small
  mutable std::size_t scanned_ = 0;
  mutable std::size_t line_start_ = 0;
  mutable std::int32_t line_ = 1;
};

}  // namespace

const JsonNode* JsonNode::find(std::string_view key) const {
  const Object* members = object();
  if (members == nullptr) return nullptr;
  for (const JsonMember& member : *members)
    if (member.first == key) return &member.second;
  return nullptr;
}

JsonNode* JsonNode::find(std::string_view key) {
  return const_cast<JsonNode*>(std::as_const(*this).find(key));
}

const char* JsonNode::type_name() const {
  constexpr std::array<const char*, 7> names = {
      "null", "true or false", "a whole number", "a number", "a string", "a list", "an object"};
  return names[value.index()];
}

Json JsonNode::to_json() const {
  return std::visit(
      [](const auto& v) -> Json {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, Array>) {
          Json list = Json::array();
          for (const JsonNode& item : v) list.push_back(item.to_json());
          return list;
        } else if constexpr (std::is_same_v<T, Object>) {
          Json object = Json::object();
          for (const JsonMember& member : v) object[member.first] = member.second.to_json();
          return object;
        } else {
          return Json(v);
        }
      },
      value);
}

JsonNode JsonNode::from(const Json& json) {
  JsonNode node;
  if (json.is_boolean()) {
    node.value = json.get<bool>();
  } else if (json.is_number_integer()) {
    node.value = json.get<std::int64_t>();
  } else if (json.is_number()) {
    node.value = json.get<double>();
  } else if (json.is_string()) {
    node.value = json.get<std::string>();
  } else if (json.is_array()) {
    Array items;
    for (const Json& item : json) items.push_back(from(item));
    node.value = std::move(items);
  } else if (json.is_object()) {
    Object members;
    for (const auto& [name, item] : json.items()) members.emplace_back(name, from(item));
    node.value = std::move(members);
  } else {
    node.value = nullptr;
  }
  return node;
}

std::string child_pointer(const std::string& pointer, std::string_view key) {
  std::string child = pointer + "/";
  for (const char c : key)
    if (c == '~' || c == '/')
      child += c == '~' ? "~0" : "~1";
    else
      child += c;
  return child;
}

JsonNode parse_json(std::string_view text, const std::string& file_name) {
  std::size_t taken = 0;
  TreeBuilder builder(text, file_name, taken);
  const CountingIterator begin(text.data(), &taken);
  const CountingIterator end(text.data() + text.size(), &taken);
  nlohmann::json::sax_parse(begin, end, &builder);
  return builder.take_root();
}

JsonNode read_json_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw ConfigError(path.string() + ": cannot be read (it is a folder, not a file)");
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) text.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  if (!file) throw ConfigError(path.string() + ": cannot be read (" + std::strerror(errno) + ")");
  return parse_json(text, path.string());
}

}  // namespace layup
