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
  CHECK(error_of("{\"a\": 1,\n \"a\": 2}") == "net.json:2:2: duplicate key \"a\" (at /a)");
  CHECK(error_of("{\"a\": 4294967297000000000000}").find("net.json:1:7: ") == 0);
  CHECK(error_of("{\"a\": 18446744073709551615}").find("64-bit") != std::string::npos);
  CHECK(error_of("{\"a/b\": [0, {\"~\": 1, \"c\": {}, \"~\": 2}]}") ==
        "net.json:1:31: duplicate key \"~\" (at /a~1b/1/~0)");
  CHECK(error_of("{\"a\": [1, -1e400]}") ==
        "net.json:1:11: -1e400 does not fit into a 64-bit number");
  CHECK(error_of("1e400") == "net.json:1:1: 1e400 does not fit into a 64-bit number");
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
  CHECK(error_of(text + "\"key49999\": 0}") ==
        "net.json:50001:1: duplicate key \"key49999\" (at /key49999)");
  CHECK(error_of(text + "\"key3\": 0}") == "net.json:50001:1: duplicate key \"key3\" (at /key3)");
}

TEST_CASE("a folder is no file") {
  CHECK_THROWS_WITH_AS(read_json_file("tests"),
                       "tests: cannot be read (it is a folder, not a file)", ConfigError);
}

// Every error of an object with the keys "kernel" (needed), "pad/ding" and "mode".
std::vector<std::string> errors_in(const JsonNode& root, const std::string& origin_of = "") {
  JsonErrors errors("c.json");
  if (!origin_of.empty()) errors.note_origin(origin_of, "--set");
  JsonReader reader(root, "", errors);
  reader.require_int("kernel", {.min = 1});
  reader.get_int("pad/ding", 0, {.min = 0});
  reader.get_choice("mode", "fan_in", {"fan_in", "fan_out"});
  reader.finish();
  return errors.lines();
}

TEST_CASE("unknown keys are reported where they stand themselves") {
  using Lines = std::vector<std::string>;
  CHECK(errors_in(parse_json("{\"kernel\": 1,\n  \"modee\":\n 3}", "c.json")) ==
        Lines{"c.json:2:3: unknown key \"modee\"; did you mean \"mode\"? (at /modee)"});
  CHECK(errors_in(parse_json("{\n\"kernnel\":  1}", "c.json")) ==
        Lines{"c.json:2:1: unknown key \"kernnel\"; did you mean \"kernel\"? (at /kernnel)"});
  CHECK(errors_in(parse_json("{\"kernel\": 1, \"x~/\": 3}", "c.json")) ==
        Lines{"c.json:1:15: unknown key \"x~/\"; known: kernel, pad/ding, mode (at /x~0~1)"});
}

TEST_CASE("values: what is known, whole numbers with a point, keys with a slash") {
  using Lines = std::vector<std::string>;
  CHECK(errors_in(parse_json("{\"kernel\": 8.0, \"mode\": \"fan_inn\"}", "c.json")) ==
        Lines{"c.json:1:12: expected a whole number, found 8.0 (at /kernel)",
              "c.json:1:25: unknown value \"fan_inn\"; did you mean \"fan_in\"?; known: fan_in, "
              "fan_out (at /mode)"});
  CHECK(errors_in(parse_json("{\"kernel\": 1e300, \"pad/ding\": -1}", "c.json")) ==
        Lines{"c.json:1:12: expected a whole number, found 1e+300 (at /kernel)",
              "c.json:1:31: -1 is out of range; the least value is 0 (at /pad~1ding)"});
}

TEST_CASE("values from elsewhere have no position but an origin") {
  JsonNode root = parse_json("{\"kernel\": 0, \"pad/ding\": -1}", "c.json");
  root.find("kernel")->line = 0;
  const std::vector<std::string> lines = errors_in(root, "/kernel");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "c.json: 0 is out of range; the least value is 1 (at /kernel) (from --set)");
  CHECK(lines[1].starts_with("c.json:1:27: -1"));
  CHECK(lines[1].ends_with("(at /pad~1ding)"));
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
