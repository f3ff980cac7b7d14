// SPDX-License-Identifier: Apache-2.0
// Tables and numbers for people, independent of the locale.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace layup {

std::string format_fixed(double value, int digits);  // "12.50"
std::string format_grouped(std::int64_t number);     // "11,689,512"

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header);
  void add(std::vector<std::string> row);  // as many cells as the header
  // Aligned columns, the first one to the left.
  std::string to_text() const;
  std::string to_markdown() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace layup
