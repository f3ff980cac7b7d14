// SPDX-License-Identifier: Apache-2.0
#include "apps/text_table.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "engine/error.h"

namespace layup {
namespace {

std::string padded(const std::string& text, std::size_t width, bool to_right) {
  const std::string fill(width > text.size() ? width - text.size() : 0, ' ');
  return to_right ? fill + text : text + fill;
}

}  // namespace

std::string format_fixed(double value, int digits) {
  std::array<char, 64> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                    std::chars_format::fixed, digits);
  return {buffer.data(), result.ptr};
}

std::string format_grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

TextTable::TextTable(std::vector<std::string> header) { rows_.push_back(std::move(header)); }

void TextTable::add(std::vector<std::string> row) {
  LAYUP_ASSERT(row.size() == rows_[0].size());
  rows_.push_back(std::move(row));
}

std::string TextTable::to_text() const {
  std::vector<std::size_t> widths(rows_[0].size(), 0);
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i)
      text += (i == 0 ? "" : "  ") + padded(row[i], widths[i], i > 0);
    text += "\n";
  }
  return text;
}

std::string TextTable::to_markdown() const {
  std::string text;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    for (const std::string& cell : rows_[i]) text += "| " + cell + " ";
    text += "|\n";
    if (i > 0) continue;
    for (std::size_t column = 0; column < rows_[0].size(); ++column) text += "|---";
    text += "|\n";
  }
  return text;
}

}  // namespace layup
