// SPDX-License-Identifier: Apache-2.0
// Training configurations: everything that is wrong is an error with its place and what was meant.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>

#include "apps/config.h"
#include "engine/error.h"
#include "engine/graph/graph.h"
#include "tests/support/temp_folder.h"

namespace layup {
namespace {

using test::TempFolder;

// Every key that a configuration may have, but for those of the other data formats.
constexpr const char* kFull = R"({
  "model": {
    "name": "tiny",
    "input": {
      "shape": [1, 12, 12]
    },
    "layers": [
      {
        "name": "conv1",
        "type": "conv2d",
        "inputs": ["input"],
        "out_channels": 4,
        "kernel": 3,
        "stride": 1,
        "padding": 1,
        "dilation": 1,
        "groups": 1,
        "bias": true
      },
      {"name": "fc", "type": "linear", "out_features": 5},
      {"name": "loss", "type": "softmax_cross_entropy", "label_smoothing": 0.1}
    ]
  },
  "data": {
    "format": "synthetic",
    "shape": [1, 12, 12],
    "classes": 5,
    "samples": 60,
    "test_samples": 12,
    "normalize": {
      "mean": [0.5],
      "std": [0.25]
    },
    "augment": [
      {
        "type": "pad_crop",
        "padding": 2
      }
    ],
    "loader_threads": 1,
    "shuffle": true,
    "drop_last": false
  },
  "solver": {
    "type": "sgd",
    "lr": 0.05,
    "momentum": 0.9,
    "nesterov": false,
    "weight_decay": 0.0001,
    "schedule": {
      "type": "cosine",
      "steps": 100,
      "min_lr": 0.0,
      "warmup_steps": 3
    }
  },
  "train": {
    "batch": 8,
    "precision": "float32",
    "epochs": 3,
    "seed": 7,
    "checkpoint": {
      "every_epochs": 1,
      "every_steps": 50,
      "keep": 3
    }
  },
  "memory": {
    "policy": "none",
    "budget": "64MiB",
    "host_budget": "1GiB",
    "spill": "file:/var/tmp"
  }
}
)";

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) : path_(folder_ / "run.json") {
    std::ofstream(path_) << text;
  }
  RunConfig read(const std::vector<Override>& changes = {}) const {
    return read_config(path_, changes);
  }
  // Of a ConfigError or a GraphError: both are exit code 2.
  std::string error(const std::vector<Override>& changes = {}) const {
    try {
      read(changes);
    } catch (const ConfigError& error) {
      return error.what();
    } catch (const GraphError& error) {
      return error.what();
    }
    return "";
  }
  const std::filesystem::path& path() const { return path_; }
  const TempFolder& folder() const { return folder_; }

 private:
  TempFolder folder_;
  std::filesystem::path path_;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

void check_error(const std::string& error, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    INFO("looking for \"" << word << "\" in: " << error);
    CHECK(error.find(word) != std::string::npos);
  }
}

struct Key {
  std::string name;
  std::size_t line = 0;   // 1-based
  std::size_t begin = 0;  // of the name in the text
};

// The keys that stand first in their lines.
std::vector<Key> keys_of(const std::string& text) {
  std::vector<Key> keys;
  std::size_t line = 1;
  for (std::size_t begin = 0; begin < text.size(); ++line) {
    const std::size_t end = text.find('\n', begin);
    const std::size_t quote = text.find_first_not_of(' ', begin);
    if (quote < end && text[quote] == '"') {
      const std::size_t close = text.find('"', quote + 1);
      if (text[close + 1] == ':')
        keys.push_back({text.substr(quote + 1, close - quote - 1), line, quote + 1});
    }
    begin = end + 1;
  }
  return keys;
}

TEST_CASE("config: the full one is read") {
  const ConfigFile file(kFull);
  const RunConfig config = file.read();
  CHECK(config.network.layers.size() == 3);
  CHECK(config.data.train->size() == 60);
  CHECK(config.data.test->size() == 12);
  CHECK(config.train.batch == 8);
  CHECK(config.train.checkpoint.every_steps == 50);
  CHECK(config.memory.budget_bytes == std::int64_t{64} << 20);
  CHECK(config.memory.host_budget_bytes == std::int64_t{1} << 30);
  CHECK(config.memory.spill == "/var/tmp");
  CHECK(config.steps_per_epoch() == 8);
  CHECK(config.last_batch() == 4);
  CHECK(config.total_steps() == 24);
  CHECK(config.data_options.preprocess.crop_padding == 2);
}

TEST_CASE("config: every misspelt key is found, with its place and the right word") {
  const std::string text = kFull;
  const std::vector<Key> keys = keys_of(text);
  CHECK(keys.size() > 45);
  for (const Key& key : keys) {
    CAPTURE(key.name);
    CAPTURE(key.line);
    std::string misspelt = text;
    misspelt.insert(key.begin + key.name.size(), 1, key.name.back());
    const ConfigFile file(misspelt);
    const std::string wrong = key.name + key.name.back();
    check_error(file.error(),
                {"unknown key \"" + wrong + "\"", "did you mean \"" + key.name + "\"?",
                 file.path().string() + ":" + std::to_string(key.line) + ":"});
  }
}

TEST_CASE("config: values of a wrong type, out of range, fractional or too large") {
  struct Wrong {
    const char* from;
    const char* to;
    std::vector<std::string> words;
  };
  const std::vector<Wrong> all = {
      {"\"batch\": 8", "\"batch\": \"8\"", {"/train/batch", "a string"}},
      {"\"batch\": 8", "\"batch\": 2.5", {"/train/batch", "2.5"}},
      {"\"batch\": 8", "\"batch\": 0", {"/train/batch", "0"}},
      {"\"batch\": 8", "\"batch\": -3", {"/train/batch", "-3"}},
      {"\"batch\": 8", "\"batch\": true", {"/train/batch"}},
      {"\"batch\": 8", "\"batch\": null", {"/train/batch"}},
      {"\"batch\": 8", "\"batch\": [8]", {"/train/batch", "a list"}},
      {"\"batch\": 8", "\"batch\": 4294967297", {"/train/batch", "4294967297"}},
      {"\"batch\": 8", "\"batch\": 4294967297000000000000", {"4294967297000000000000"}},
      {"\"batch\": 8", "\"batch\": 1e400", {"1e400 does not fit into a 64-bit number"}},
      {"\"batch\": 8", "\"batch\": 8.0", {"/train/batch", "found 8.0"}},
      {"\"float32\"", "\"fp16\"", {"/train/precision", "known: float32, bf16"}},
      {"\"lr\": 0.05", "\"lr\": -1", {"/solver/lr", "-1"}},
      {"\"momentum\": 0.9", "\"momentum\": 1.5", {"/solver/momentum", "1.5"}},
      {"\"momentum\": 0.9", "\"momentum\": \"0,9\"", {"/solver/momentum"}},
      {"\"nesterov\": false", "\"nesterov\": 0", {"/solver/nesterov"}},
      {"\"std\": [0.25]", "\"std\": [0]", {"/data/normalize/std/0"}},
      {"\"mean\": [0.5]", "\"mean\": [0.5, 0.5, 0.5]", {"/data/normalize/mean"}},
      {"\"keep\": 3", "\"keep\": 0", {"/train/checkpoint/keep"}},
      {"\"seed\": 7", "\"seed\": -7", {"/train/seed"}},
      {"\"budget\": \"64MiB\"", "\"budget\": \"64 apples\"", {"/memory/budget", "64 apples"}},
      {"\"budget\": \"64MiB\"", "\"budget\": \"-1MiB\"", {"/memory/budget"}},
      {"\"budget\": \"64MiB\"", "\"budget\": 0.5", {"/memory/budget"}},
      {"\"file:/var/tmp\"", "\"/var/tmp\"", {"/memory/spill", "/var/tmp", "file:FOLDER"}},
      {"\"file:/var/tmp\"", "\"file:\"", {"/memory/spill", "file:FOLDER"}},
      {"\"file:/var/tmp\"", "true", {"/memory/spill"}},
      {"\"policy\": \"none\"", "\"policy\": \"nonne\"", {"did you mean \"none\"?; known: "}},
      {"\"type\": \"sgd\"", "\"type\": \"sdg\"", {"/solver/type", "sgd"}},
      {"\"type\": \"cosine\"", "\"type\": \"cosinus\"", {"/solver/schedule/type", "cosine"}},
      {"\"format\": \"synthetic\"", "\"format\": \"sintetic\"", {"/data/format", "synthetic"}},
      {"\"type\": \"pad_crop\"", "\"type\": \"padcrop\"", {"/data/augment/0/type", "pad_crop"}},
      {"\"type\": \"conv2d\"", "\"type\": \"conv3d\"", {"/model/layers/0/type", "conv2d"}},
      {"\"kernel\": 3", "\"kernel\": [3, 3, 3]", {"/model/layers/0/kernel"}},
      {"\"kernel\": 3",
       "\"kernel\": 99",
       {"run.json:8:7: ", "conv1", "99x99", "(at /model/layers/0)"}},
      {"\"train\": {", "\"train\": 3, \"memoryy\": {", {"/train", "memoryy"}},
  };
  for (const Wrong& wrong : all) {
    CAPTURE(std::string(wrong.to));
    const ConfigFile file(replaced(kFull, wrong.from, wrong.to));
    const std::string error = file.error();
    CHECK(error != "");
    check_error(error, wrong.words);
  }
}

TEST_CASE("config: sections that are missing are named") {
  for (const char* section : {"model", "data", "solver", "train"}) {
    CAPTURE(std::string(section));
    Json config = Json::parse(kFull);
    config.erase(section);
    check_error(ConfigFile(config.dump()).error(), {"\"" + std::string(section) + "\" is missing"});
  }
  Json config = Json::parse(kFull);
  config.erase("memory");
  CHECK(ConfigFile(config.dump()).read().memory.policy == "auto");
}

TEST_CASE("config: all errors in one go") {
  std::string text = kFull;
  text = replaced(text, "\"batch\": 8", "\"batch\": 2.5");
  text = replaced(text, "\"momentum\": 0.9", "\"momentum\": -1");
  text = replaced(text, "\"policy\": \"none\"", "\"policy\": \"nonne\"");
  text = replaced(text, "\"padding\": 2", "\"paddin\": 2");
  text = replaced(text, "\"out_features\": 5", "\"out_features\": \"five\"");
  const std::string error = ConfigFile(text).error();
  check_error(error, {"/train/batch", "/solver/momentum", "did you mean \"none\"?",
                      "did you mean \"padding\"?", "/model/layers/1/out_features"});
  CHECK(std::count(error.begin(), error.end(), '\n') >= 4);
  // Sections that are missing, and a model whose data cannot be opened.
  check_error(ConfigFile("{}").error(), {"\"model\" is missing", "\"data\" is missing",
                                         "\"solver\" is missing", "\"train\" is missing"});
  for (const char* data : {R"({"format": "idx", "path": "nowhere"})", R"({"format": "idxx"})"}) {
    CAPTURE(std::string(data));
    Json config = Json::parse(kFull);
    config["data"] = Json::parse(data);
    config["model"]["layers"][1]["out_feature"] = 5;
    check_error(ConfigFile(config.dump()).error(), {"unknown key \"out_feature\""});
    config["model"] = {{"builder", "resnet"}, {"dept", 18}};
    check_error(ConfigFile(config.dump()).error(), {"did you mean \"depth\"?"});
    config["model"] = {{"builder", "vgg"}, {"depth", 16}};
    if (Json::parse(data)["format"] == "idx")  // nothing else is wrong
      CHECK_THROWS_AS(ConfigFile(config.dump()).read(), DataError);
  }
  Json config = Json::parse(kFull);
  config["model"] = "net.json";
  config["train"]["batch"] = 0;
  const ConfigFile file(config.dump());
  std::ofstream(file.folder() / "net.json") << "{,}";
  check_error(file.error(), {"net.json:1:2: syntax error", "/train/batch"});
}

TEST_CASE("config: what does not fit a built network is said of the model") {
  Json config = Json::parse(kFull);
  config["model"] = {{"builder", "lenet"}};
  config["data"]["shape"] = {1, 28, 28};
  const ConfigFile file(config.dump());
  const Graph graph = build_graph(file.read().network, 2);
  const std::string place = file.path().string() + ":1:10: x (at /model)";  // after {"model":
  CHECK(graph.place.describe("x") == place);
  for (const Node& node : graph.nodes) CHECK(node.place.describe("x") == place);
}

TEST_CASE("config: syntax errors, duplicate keys and missing files say where") {
  check_error(ConfigFile(replaced(kFull, "\"batch\": 8,", "\"batch\": 8")).error(),
              {"run.json:59:"});
  check_error(ConfigFile(replaced(kFull, "\"epochs\": 3", "\"batch\": 3")).error(),
              {"run.json:60:5: ", "duplicate key \"batch\" (at /train/batch)"});
  check_error(ConfigFile("[]").error(), {"run.json:1:1"});
  CHECK_THROWS_AS(read_config("no-such-file.json", {}), ConfigError);
  CHECK_THROWS_WITH_AS(read_config("tests", {}),
                       "tests: cannot be read (it is a folder, not a file)", ConfigError);
}

TEST_CASE("config: --set changes, adds and is checked like the file") {
  const ConfigFile file(kFull);
  CHECK(file.read({{"train.batch", "16"}}).train.batch == 16);
  CHECK(file.read({{"train.batch", "16"}, {"train.batch", "4"}}).train.batch == 4);
  CHECK(file.read({{"memory.policy", "caffe"}}).memory.policy == "caffe");  // a bare string
  CHECK(file.read({{"model.layers.0.out_channels", "6"}})
            .json["model"]["layers"][0]["out_channels"] == 6);
  CHECK(file.read({{"data.augment", "[]"}}).data_options.preprocess.crop_padding == 0);
  CHECK(file.read({{"memory", R"({"budget": "1GiB"})"}}).memory.budget_bytes == std::int64_t{1}
                                                                                    << 30);
  check_error(file.error({{"train.bach", "16"}}), {"\"bach\"", "did you mean \"batch\"?"});
  check_error(file.error({{"train.batch", "many"}}), {"/train/batch", "a string"});
  // No position in the file, also for what lies inside.
  const std::string name = file.path().string();
  CHECK(file.error({{"train.checkpoint", R"({"keep": 0, "x": 1, "every_epochs": 2})"}}) ==
        name +
            ": 0 is out of range; the least value is 1 (at /train/checkpoint/keep) (from --set "
            "train.checkpoint={\"keep\": 0, \"x\": 1, \"every_epochs\": 2})\n" +
            name +
            ": unknown key \"x\"; known: every_steps, every_epochs, keep (at "
            "/train/checkpoint/x) (from --set "
            "train.checkpoint={\"keep\": 0, \"x\": 1, \"every_epochs\": 2})");
  check_error(file.error({{"model.layers.7.kernel", "3"}}),
              {"--set model.layers.7.kernel=3", "no item 7"});
  check_error(file.error({{"", "3"}}), {"path=value"});
  check_error(file.error({{"train..batch", "3"}}), {"path=value"});
}

TEST_CASE("config: data and network must fit") {
  check_error(
      ConfigFile(replaced(kFull, "\"shape\": [1, 12, 12]\n", "\"shape\": [1, 14, 14]\n")).error(),
      {"run.json:2:12: ", "[1, 14, 14]", "[1, 12, 12]", "(at /model)"});
  const std::string without_loss =
      replaced(kFull,
               ",\n      {\"name\": \"loss\", \"type\": \"softmax_cross_entropy\", "
               "\"label_smoothing\": 0.1}",
               "");
  check_error(ConfigFile(without_loss).error(), {"run.json:2:12: ", "no loss", "(at /model)"});
  Json config = Json::parse(kFull);
  config["train"]["batch"] = 100;
  config["data"]["drop_last"] = true;
  check_error(ConfigFile(config.dump()).error(),
              {"run.json:1:", "\"drop_last\" leaves no batch", "60", "(at /data/drop_last)"});
  config["model"] = "elsewhere.json";
  check_error(ConfigFile(config.dump()).error(), {"/model", "no network file \"elsewhere.json\""});
}

TEST_CASE("config: a network file is found beside the configuration, its errors have its name") {
  Json config = Json::parse(kFull);
  const Json network = config["model"];
  config["model"] = "net.json";
  const ConfigFile file(config.dump());
  std::ofstream(file.folder() / "net.json") << network.dump(1);
  CHECK(file.read().network.layers.size() == 3);
  std::ofstream(file.folder() / "net.json") << replaced(network.dump(1), "linear", "lineer");
  check_error(file.error(), {"net.json:", "did you mean \"linear\"?"});
}

TEST_CASE("config: a label that the network has no output for names the sample") {
  const ConfigFile file(replaced(kFull, "\"out_features\": 5", "\"out_features\": 4"));
  // Sample i of the made-up set has label i mod 5.
  CHECK_THROWS_WITH_AS(
      file.read(), "sample 4 of the training set: label 4, but the model has 4 classes (0 to 3)",
      DataError);
}

}  // namespace
}  // namespace layup
