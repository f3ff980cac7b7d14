// SPDX-License-Identifier: Apache-2.0
#include "engine/graph/initializer.h"

#include <cmath>
#include <numbers>

#include "engine/rng.h"

namespace layup {
namespace {

struct Fans {
  double in = 1;
  double out = 1;
};

Fans fans(const Shape& shape) {
  Fans result{1, 1};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) result.in *= static_cast<double>(shape[i]);
    if (i != 1) result.out *= static_cast<double>(shape[i]);
  }
  return result;
}

Initializer uniform(double bound) { return {Initializer::Kind::uniform, bound}; }
Initializer normal(double deviation) { return {Initializer::Kind::normal, deviation}; }

}  // namespace

InitRule read_init_rule(JsonReader& reader, std::string_view key) {
  InitRule rule;
  const JsonNode* node = reader.get_node(key);
  if (node == nullptr) return rule;
  static const std::vector<std::string> kNames = {
      "default",       "kaiming_uniform", "kaiming_normal", "xavier_uniform",
      "xavier_normal", "normal",          "uniform",        "constant"};
  if (node->object() == nullptr) {
    rule.json = reader.require_choice(key, kNames);
    if (rule.json == "normal" || rule.json == "uniform" || rule.json == "constant") {
      reader.fail(key, "\"" + rule.json.get<std::string>() +
                           "\" needs a number; write {\"type\": \"normal\", \"std\": 0.01}, "
                           "{\"type\": \"uniform\", \"bound\": 0.1} or "
                           "{\"type\": \"constant\", \"value\": 0}");
      rule.json = "default";
    }
    return rule;
  }
  JsonReader object = *reader.get_object(key);
  const std::string type = object.require_choice("type", kNames);
  Json json = {{"type", type}};
  if (type == "normal") json["std"] = object.require_number("std", {.min = 0});
  if (type == "uniform") json["bound"] = object.require_number("bound", {.min = 0});
  if (type == "constant") json["value"] = object.require_number("value");
  if (type.starts_with("kaiming"))
    json["mode"] = object.get_choice("mode", "fan_in", {"fan_in", "fan_out"});
  object.finish();
  rule.json = std::move(json);
  return rule;
}

std::optional<InitRule> read_bias_init_rule(JsonReader& reader, bool has_bias) {
  constexpr const char* kKey = "bias_init";
  if (!reader.has(kKey)) return std::nullopt;
  const InitRule rule = read_init_rule(reader, kKey);
  if (!has_bias) reader.fail(kKey, "\"bias_init\" is given, but \"bias\" is false");
  return rule;
}

Initializer resolve(const InitRule& rule, const Shape& weight_shape) {
  const Fans fan = fans(weight_shape);
  const Json& json = rule.json;
  const auto type = json.is_object() ? json["type"].get<std::string>() : json.get<std::string>();
  const double chosen =
      json.is_object() && json.value("mode", "fan_in") == "fan_out" ? fan.out : fan.in;
  if (type == "kaiming_uniform") return uniform(std::sqrt(6 / chosen));
  if (type == "kaiming_normal") return normal(std::sqrt(2 / chosen));
  if (type == "xavier_uniform") return uniform(std::sqrt(6 / (fan.in + fan.out)));
  if (type == "xavier_normal") return normal(std::sqrt(2 / (fan.in + fan.out)));
  if (type == "normal") return normal(json["std"].get<double>());
  if (type == "uniform") return uniform(json["bound"].get<double>());
  if (type == "constant") return {Initializer::Kind::constant, json["value"].get<double>()};
  return uniform(1 / std::sqrt(fan.in));
}

Initializer resolve_bias(const InitRule& weight_rule, const std::optional<InitRule>& bias_rule,
                         const Shape& weight_shape) {
  if (bias_rule) return resolve(*bias_rule, weight_shape);
  if (weight_rule == InitRule{}) return resolve(weight_rule, weight_shape);
  return {Initializer::Kind::constant, 0};
}

void initialize(const Initializer& init, std::uint64_t seed, std::string_view parameter_name,
                std::span<float> values) {
  const std::uint64_t key = mix(seed ^ mix(fnv1a(parameter_name)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (init.kind == Initializer::Kind::constant) {
      values[i] = static_cast<float>(init.scale);
      continue;
    }
    const Philox words = philox(key, 0, i);
    if (init.kind == Initializer::Kind::uniform) {
      values[i] = static_cast<float>(init.scale * (2.0 * to_unit_float(words[0]) - 1));
    } else {  // Box-Muller; 1 - u keeps the logarithm finite
      const double radius = std::sqrt(-2 * std::log(1.0 - to_unit_float(words[0])));
      const double angle = 2 * std::numbers::pi * to_unit_float(words[1]);
      values[i] = static_cast<float>(init.scale * radius * std::cos(angle));
    }
  }
}

}  // namespace layup
