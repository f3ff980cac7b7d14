// SPDX-License-Identifier: Apache-2.0
// How a parameter is filled before step 0: a pure function of (seed, parameter name, element).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "engine/json_reader.h"
#include "engine/shape.h"

namespace layup {

// A distribution with its numbers worked out.
struct Initializer {
  enum class Kind : std::uint8_t { constant, uniform, normal };
  Kind kind = Kind::constant;
  double scale = 0;  // the constant; the bound of [-scale, scale); the standard deviation

  bool operator==(const Initializer&) const = default;
};

// A rule of a network file ("init": "kaiming_normal" or {"type": "normal", "std": 0.01}), before
// the shape is known.
//   default          uniform, bound 1/sqrt(fan_in): PyTorch's default for conv and linear weights
//   kaiming_uniform  bound sqrt(6/fan), kaiming_normal: std sqrt(2/fan), with "mode" fan_in
//                    (default) or fan_out: He et al. 2015, arXiv:1502.01852, eq. 10 and 14
//   xavier_uniform   bound sqrt(6/(fan_in+fan_out)), xavier_normal: std sqrt(2/(fan_in+fan_out)):
//                    Glorot and Bengio 2010, eq. 16
//   normal, uniform, constant with "std", "bound", "value"
struct InitRule {
  Json json = "default";  // as written; what read_init_rule accepts

  bool operator==(const InitRule&) const = default;
};

// Reads `key` of a layer; absent gives "default". Errors go to the reader.
InitRule read_init_rule(JsonReader& reader, std::string_view key);

// Likewise "bias_init" of a layer with weights; nothing if absent. An error without a bias.
std::optional<InitRule> read_bias_init_rule(JsonReader& reader, bool has_bias);

// fan_in = product of the shape without its first dimension, fan_out = product without its second
// (OIHW and [out, in] weights).
Initializer resolve(const InitRule& rule, const Shape& weight_shape);
// By the bias's own rule, with the fans of the weight, if there is one. Else PyTorch's default
// bias: uniform, bound 1/sqrt(fan_in of the weight); with any other rule for the weight it is 0 (as
// most of torchvision's builders do), unless the rule is default.
Initializer resolve_bias(const InitRule& weight_rule, const std::optional<InitRule>& bias_rule,
                         const Shape& weight_shape);

// Fills values; the same bits whatever the order or the number of threads.
void initialize(const Initializer& init, std::uint64_t seed, std::string_view parameter_name,
                std::span<float> values);

}  // namespace layup
