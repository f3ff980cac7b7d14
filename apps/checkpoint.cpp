// SPDX-License-Identifier: Apache-2.0
#include "apps/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "engine/error.h"
#include "engine/safetensors.h"

namespace layup {
namespace {

constexpr const char* kFormatKey = "layup.format";
constexpr const char* kFormat = "checkpoint-1";
constexpr const char* kPrefix = "checkpoint-";
constexpr const char* kSuffix = ".safetensors";

std::string file_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  return kPrefix + std::string(digits.size() < 8 ? 8 - digits.size() : 0, '0') + digits + kSuffix;
}

std::string solver_name(const PersistentTensor& state) { return "solver/" + state.name; }

// What is saved, in the order of the file. Data are read one tensor at a time.
class SavedTensors {
 public:
  explicit SavedTensors(const Session& session) : session_(session) {
    for (const PersistentTensor& tensor : session.parameters()) add(tensor.name, tensor);
    for (const PersistentTensor& tensor : session.buffers()) add(tensor.name, tensor);
    for (const PersistentTensor& tensor : session.solver_states()) add(solver_name(tensor), tensor);
  }

  const std::vector<TensorBlob>& blobs() const { return blobs_; }
  const void* read(std::size_t i) {
    buffer_.resize(static_cast<std::size_t>(tensors_[i]->count()));
    session_.read(*tensors_[i], buffer_);
    return buffer_.data();
  }

 private:
  void add(const std::string& name, const PersistentTensor& tensor) {
    tensors_.push_back(&tensor);
    blobs_.push_back({name, StoredType::f32, tensor.shape, nullptr,
                      tensor.count() * static_cast<std::int64_t>(sizeof(float))});
  }

  const Session& session_;
  std::vector<const PersistentTensor*> tensors_;
  std::vector<TensorBlob> blobs_;
  std::vector<float> buffer_;
};

Metadata to_metadata(const RunState& state) {
  return {{kFormatKey, kFormat},
          {"layup.step", std::to_string(state.step)},
          {"layup.batch", std::to_string(state.batch)},
          {"layup.samples", std::to_string(state.samples)},
          {"layup.seed", std::to_string(state.seed)},
          {"layup.solver", state.solver},
          {"layup.device", state.device},
          {"layup.threads", std::to_string(state.threads)},
          {"layup.config", state.config.dump()}};
}

template <typename T>
T metadata_number(const SafetensorsFile& file, const std::filesystem::path& path, const char* key) {
  const std::string* text = file.find_metadata(key);
  T value = 0;
  if (text == nullptr) throw DataError(path.string() + ": \"" + key + "\" is missing");
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size())
    throw DataError(path.string() + ": \"" + key + "\" is not a number: \"" + *text + "\"");
  return value;
}

RunState read_state(const SafetensorsFile& file, const std::filesystem::path& path) {
  const std::string* format = file.find_metadata(kFormatKey);
  if (format == nullptr)
    throw DataError(path.string() +
                    " has weights but no training state; start from them with --init " +
                    path.string());
  if (*format != kFormat)
    throw DataError(path.string() + " has the format \"" + *format + "\"; this version reads \"" +
                    kFormat + "\"");
  RunState state;
  state.step = metadata_number<std::int64_t>(file, path, "layup.step");
  state.batch = metadata_number<std::int64_t>(file, path, "layup.batch");
  state.samples = metadata_number<std::int64_t>(file, path, "layup.samples");
  state.seed = metadata_number<std::uint64_t>(file, path, "layup.seed");
  state.threads = metadata_number<int>(file, path, "layup.threads");
  if (const std::string* solver = file.find_metadata("layup.solver")) state.solver = *solver;
  if (const std::string* device = file.find_metadata("layup.device")) state.device = *device;
  if (const std::string* config = file.find_metadata("layup.config"))
    state.config = Json::parse(*config, nullptr, /*allow_exceptions=*/false);
  return state;
}

void load_tensor(const SafetensorsFile& file, const std::filesystem::path& path,
                 const std::string& name, const PersistentTensor& tensor, Session& session) {
  const TensorBlob* found = file.find(name);
  if (found == nullptr) {
    const std::vector<std::string> names = file.names();
    const auto near = did_you_mean(name, names);
    throw DataError(path.string() + " has no tensor \"" + name + "\", which the network needs" +
                    (near ? "; the nearest is \"" + *near + "\"" : ""));
  }
  if (found->type != StoredType::f32 || found->shape != tensor.shape)
    throw DataError(path.string() + ": \"" + name + "\" has shape " + to_string(found->shape) +
                    (found->type == StoredType::f32 ? "" : " and is not float32") +
                    ", the network needs " + to_string(tensor.shape));
  std::vector<float> values(static_cast<std::size_t>(tensor.count()));
  std::memcpy(values.data(), found->data, values.size() * sizeof(float));
  SafetensorsFile::drop(*found);
  session.write(tensor, values);
}

void load_network(const SafetensorsFile& file, const std::filesystem::path& path,
                  Session& session) {
  for (const auto* list : {&session.parameters(), &session.buffers()})
    for (const PersistentTensor& tensor : *list)
      load_tensor(file, path, tensor.name, tensor, session);
}

void require_same(const std::filesystem::path& path, const char* what, const std::string& theirs,
                  const std::string& ours) {
  if (theirs != ours)
    throw DataError(path.string() + " was made with " + what + " " + theirs + ", this run has " +
                    ours + "; resume with the same, or start anew from its weights with --init");
}

// "solver.lr: 0.1, now 0.2" for every leaf that differs.
void list_differences(const Json& theirs, const Json& ours, const std::string& path,
                      std::vector<std::string>& differences) {
  if (theirs == ours) return;
  if (!theirs.is_object() || !ours.is_object()) {
    differences.push_back(path + ": " + (theirs.is_null() ? "absent" : theirs.dump()) + ", now " +
                          (ours.is_null() ? "absent" : ours.dump()));
    return;
  }
  const auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  for (const auto& [key, value] : theirs.items())
    list_differences(value, ours.contains(key) ? ours[key] : Json(), below(key), differences);
  for (const auto& [key, value] : ours.items())
    if (!theirs.contains(key)) list_differences(Json(), value, below(key), differences);
}

// A tensor that the network lacks means that the checkpoint is of another one.
void require_no_others(const SafetensorsFile& file, const std::filesystem::path& path,
                       const Session& session) {
  std::set<std::string> known;
  for (const auto* list : {&session.parameters(), &session.buffers()})
    for (const PersistentTensor& tensor : *list) known.insert(tensor.name);
  for (const PersistentTensor& tensor : session.solver_states()) known.insert(solver_name(tensor));
  for (const TensorBlob& tensor : file.tensors())
    if (!known.contains(tensor.name))
      throw DataError(path.string() + " has a tensor \"" + tensor.name +
                      "\" that the network lacks: it was made by another network; start anew from "
                      "its weights with --init");
}

}  // namespace

std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& dir) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix)) found.push_back(entry.path());
  }
  // Longer numbers are larger; equally long ones compare as text.
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    const std::string x = a.filename().string();
    const std::string y = b.filename().string();
    return x.size() != y.size() ? x.size() > y.size() : x > y;
  });
  return found;
}

std::filesystem::path save_checkpoint(const std::filesystem::path& dir, const Session& session,
                                      const RunState& state, std::int64_t keep) {
  const std::filesystem::path path = dir / file_name(state.step);
  SavedTensors tensors(session);
  write_safetensors(path, to_metadata(state), tensors.blobs(),
                    [&](std::size_t i) { return tensors.read(i); });
  const std::vector<std::filesystem::path> all = list_checkpoints(dir);
  for (std::size_t i = static_cast<std::size_t>(keep); i < all.size(); ++i) {
    std::error_code ignored;  // an old file that stays does no harm
    if (all[i] != path) std::filesystem::remove(all[i], ignored);
  }
  return path;
}

LoadedCheckpoint load_checkpoint(const std::filesystem::path& dir, Session& session,
                                 const RunState& expected) {
  const std::vector<std::filesystem::path> candidates =
      std::filesystem::is_regular_file(dir) ? std::vector{dir} : list_checkpoints(dir);
  LoadedCheckpoint loaded;
  std::optional<SafetensorsFile> file;
  std::string last_error;
  for (const std::filesystem::path& path : candidates) {
    try {
      file = SafetensorsFile::open(path);
      loaded.path = path;
      break;
    } catch (const DataError& error) {
      last_error = error.what();
      loaded.warnings.push_back("passed over a damaged checkpoint: " + last_error);
    }
  }
  if (!file)
    throw DataError(candidates.empty() ? "there is no checkpoint in " + dir.string()
                                       : "no checkpoint in " + dir.string() +
                                             " can be read; the last error: " + last_error);
  loaded.state = read_state(*file, loaded.path);
  const RunState& theirs = loaded.state;
  require_same(loaded.path, "the solver", theirs.solver, expected.solver);
  require_same(loaded.path, "batch", std::to_string(theirs.batch), std::to_string(expected.batch));
  require_same(loaded.path, "a training set of", std::to_string(theirs.samples) + " samples",
               std::to_string(expected.samples) + " samples");
  require_same(loaded.path, "seed", std::to_string(theirs.seed), std::to_string(expected.seed));
  if (theirs.device != expected.device || theirs.threads != expected.threads)
    loaded.warnings.push_back("the checkpoint was made on device " + theirs.device + " with " +
                              std::to_string(theirs.threads) + " threads, this run has " +
                              expected.device + " with " + std::to_string(expected.threads) +
                              "; results may differ in their last bits");
  if (theirs.config.is_object()) {
    std::vector<std::string> differences;
    list_differences(theirs.config, expected.config, "", differences);
    for (const std::string& difference : differences)
      loaded.warnings.push_back("the checkpoint's run was configured otherwise: " + difference);
  }
  load_network(*file, loaded.path, session);
  require_no_others(*file, loaded.path, session);
  for (const PersistentTensor& tensor : session.solver_states())
    load_tensor(*file, loaded.path, solver_name(tensor), tensor, session);
  return loaded;
}

std::filesystem::path load_weights(const std::filesystem::path& path, Session& session) {
  std::filesystem::path file = path;
  if (std::filesystem::is_directory(path)) {
    const std::vector<std::filesystem::path> all = list_checkpoints(path);
    if (all.empty()) throw DataError("there is no checkpoint in " + path.string());
    file = all.front();
  }
  load_network(SafetensorsFile::open(file), file, session);
  return file;
}

}  // namespace layup
