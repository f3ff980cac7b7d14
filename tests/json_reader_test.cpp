// SPDX-License-Identifier: Apache-2.0
#include "engine/json_reader.h"

#include <doctest/doctest.h>

#include "engine/error.h"

namespace layup {
namespace {

std::string error_of(std::string_view text) {
  try {
    parse_json(text, "net.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("positions, order and types of a parsed text") {
  const JsonNode root =
      parse_json("{\n  \"b\": [1, -2.5, \"x\\\"y\", true],\n  \"a\": {\"c\": null}\n}", "n");
  CHECK(root.object()->at(0).first == "b");
  CHECK(root.object()->at(1).first == "a");
  const JsonNode& list = *root.find("b");
  CHECK(list.line == 2);
  CHECK(list.column == 8);
  CHECK((*list.array())[0].column == 9);
  CHECK((*list.array())[1].column == 12);
  CHECK(std::get<double>((*list.array())[1].value) == -2.5);
  CHECK((*list.array())[2].column == 18);
  CHECK((*list.array())[3].column == 26);
  CHECK(root.find("a")->find("c")->line == 3);
  CHECK(root.find("a")->find("c")->column == 14);
}

TEST_CASE("syntax errors, duplicates, overflow and depth are refused with a position") {
  CHECK(error_of("{\"a\": 1,\n \"a\": 2}") == "net.json:2:2: duplicate key \"a\"");
  CHECK(error_of("{\"a\": 4294967297000000000000}").find("net.json:1:7: ") == 0);
  CHECK(error_of("{\"a\": 18446744073709551615}").find("64-bit") != std::string::npos);
  CHECK(error_of("{\"a\": 1,}").find("net.json:1:") == 0);
  CHECK(error_of("{\"a\": NaN}").find("net.json:1:") == 0);
  CHECK(error_of("{} x").find("net.json:1:") == 0);
  CHECK(error_of("").find("net.json:1:1") == 0);
  CHECK(error_of(std::string(100000, '[')).find("nested deeper") != std::string::npos);
}

TEST_CASE("duplicates are found in large objects, which take linear time") {
  std::string text = "{";
  for (int i = 0; i < 50000; ++i) text += "\"key" + std::to_string(i) + "\": {\"a\": 1},\n";
  CHECK(parse_json(text + "\"last\": 0}", "n").object()->size() == 50001);
  CHECK(error_of(text + "\"key49999\": 0}") == "net.json:50001:1: duplicate key \"key49999\"");
  CHECK(error_of(text + "\"key3\": 0}") == "net.json:50001:1: duplicate key \"key3\"");
}

TEST_CASE("all errors are reported in one go, with suggestions") {
  const JsonNode root = parse_json(
      "{\"kernel\": 3.5,\n \"paddding\": 1,\n \"rate\": -1,\n \"mode\": \"fan_inn\",\n \"big\": "
      "9000}",
      "c.json");
  JsonErrors errors("c.json");
  JsonReader reader(root, "", errors);
  CHECK(reader.require_int("kernel", {.min = 1}) == 1);
  CHECK(reader.get_int("padding", 0, {.min = 0}) == 0);
  CHECK(reader.get_number("rate", 0.1, {.min = 0}) == 0.1);
  CHECK(reader.get_choice("mode", "fan_in", {"fan_in", "fan_out"}) == "fan_in");
  CHECK(reader.get_int("big", 1, {.min = 1, .max = 10}) == 1);
  reader.require_string("name");
  reader.finish();
  REQUIRE(errors.lines().size() == 6);
  CHECK(errors.lines()[0] == "c.json:1:12: expected a whole number, found 3.5 (at /kernel)");
  CHECK(errors.lines()[1].find("c.json:3:10: -1 is out of range") == 0);
  CHECK(errors.lines()[2].find("did you mean \"fan_in\"?") != std::string::npos);
  CHECK(errors.lines()[3].find("from 1 to 10") != std::string::npos);
  CHECK(errors.lines()[4].find("\"name\" is missing") != std::string::npos);
  CHECK(errors.lines()[5].find("did you mean \"padding\"?") != std::string::npos);
  CHECK_THROWS_AS(errors.throw_if_any(), ConfigError);
}

}  // namespace
}  // namespace layup
