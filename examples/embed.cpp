// SPDX-License-Identifier: Apache-2.0
// Layup as a library: reads a network, reports every mistake in it with its position, and prints
// the layers. Built and run by tests/embed_example.sh against the installed library:
//
//   c++ -std=c++20 examples/embed.cpp $(pkg-config --cflags --libs layup) -o embed
#include <layup.h>

#include <iostream>

namespace {

constexpr const char* kNetwork = R"({
  "name": "tiny",
  "input": {"shape": [1, 28, 28]},
  "layers": [
    {"name": "conv1", "type": "conv2d", "out_channels": 8, "kernel": 3, "padding": 1},
    {"name": "relu1", "type": "relu"},
    {"name": "fc", "type": "linear", "out_features": 10},
    {"name": "loss", "type": "softmax_cross_entropy"}
  ]
})";

void print_layers(const layup::JsonNode& network) {
  layup::JsonErrors errors("tiny.json");
  layup::JsonReader reader(network, "", errors);
  std::cout << reader.require_string("name") << '\n';
  reader.get_node("input");
  for (layup::JsonReader& layer : reader.get_object_list("layers"))
    std::cout << "  " << layer.require_string("name") << ": " << layer.require_string("type")
              << '\n';
  reader.finish();
  errors.throw_if_any();
}

}  // namespace

int main() {
  try {
    print_layers(layup::parse_json(kNetwork, "tiny.json"));
    return 0;
  } catch (const layup::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
