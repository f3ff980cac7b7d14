// SPDX-License-Identifier: Apache-2.0
#include "data/data_file.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <new>
#include <system_error>

#include "engine/error.h"

namespace layup {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;
constexpr std::size_t kMostNamesShown = 10;

// "found: a, b and 3 more".
std::string describe_folder(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  if (error) return "the folder cannot be listed: " + error.message();
  if (names.empty()) return "the folder is empty";
  std::sort(names.begin(), names.end());
  std::string text = "found: ";
  for (std::size_t i = 0; i < std::min(names.size(), kMostNamesShown); ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMostNamesShown)
    text += " and " + std::to_string(names.size() - kMostNamesShown) + " more";
  return text;
}

}  // namespace

fs::path find_data_folder(const std::string& path, const fs::path& base_dir,
                          const std::string& holding) {
  std::error_code error;
  const fs::path below = base_dir / path;
  const fs::path folder = fs::exists(below, error) ? below : fs::path(path);
  if (!fs::exists(folder, error)) {
    const std::string also = below == folder ? "" : " (nor " + below.string() + ")";
    throw DataError(folder.string() + ": no such folder" + also + "; \"path\" must be " + holding);
  }
  if (!fs::is_directory(folder, error))
    throw DataError(folder.string() + ": this is not a folder; \"path\" must be " + holding);
  return folder;
}

std::optional<fs::path> find_data_file(const fs::path& folder, const std::string& name) {
  std::error_code error;
  fs::path path = folder / name;
  if (fs::exists(path, error)) return path;
  path += ".gz";
  if (fs::exists(path, error)) return path;
  return std::nullopt;
}

fs::path require_data_file(const fs::path& folder, const std::string& name,
                           const std::string& hint) {
  if (auto path = find_data_file(folder, name)) return *path;
  throw DataError(folder.string() + ": neither " + name + " nor " + name + ".gz is there; " +
                  describe_folder(folder) + (hint.empty() ? "" : "; " + hint));
}

DataFile::DataFile(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  if (!fs::exists(status)) fail("no such file");
  if (fs::is_directory(status)) fail("this is a folder; a file was expected");
  // A pipe would block, and has no size to check a header against.
  if (!fs::is_regular_file(status)) fail("this is not a regular file");
  const auto size_on_disk = fs::file_size(path_, error);
  if (error) fail(error.message());
  file_bytes_ = static_cast<std::int64_t>(size_on_disk);
  if (file_bytes_ == 0) fail("the file is empty (0 bytes)");
  errno = 0;
  file_.reset(gzopen(path_.c_str(), "rb"));
  if (!file_) fail("cannot be opened: " + std::generic_category().message(errno));
  gzbuffer(file_.get(), 1U << 17U);
  is_compressed_ = gzdirect(file_.get()) == 0;
}

void DataFile::fail(const std::string& message) const {
  throw DataError(path_.string() + ": " + message);
}

std::int64_t DataFile::most_content_bytes() const {
  if (!is_compressed_) return file_bytes_;
  constexpr std::int64_t kMostRatio = 1033;
  if (file_bytes_ > std::numeric_limits<std::int64_t>::max() / kMostRatio)
    return std::numeric_limits<std::int64_t>::max();
  return file_bytes_ * kMostRatio;
}

std::int64_t DataFile::read_into(std::uint8_t* bytes, std::int64_t count) {
  std::int64_t done = 0;
  while (done < count) {
    const auto wanted = static_cast<unsigned>(std::min(count - done, kChunkBytes));
    errno = 0;
    const int got = gzread(file_.get(), bytes + done, wanted);
    int code = Z_OK;
    const char* message = gzerror(file_.get(), &code);
    if (code == Z_BUF_ERROR) fail("the compressed data ends too early; is the file truncated?");
    if (code == Z_ERRNO) fail("cannot be read: " + std::generic_category().message(errno));
    if (got < 0) fail(std::string("the compressed data is damaged (") + message + ")");
    if (got == 0) break;
    done += got;
  }
  return done;
}

std::vector<std::uint8_t> DataFile::read(std::int64_t limit_bytes) {
  std::vector<std::uint8_t> bytes;
  try {
    bytes.reserve(static_cast<std::size_t>(std::min(limit_bytes, file_bytes_)));
    for (std::int64_t done = 0; done < limit_bytes;) {
      const std::int64_t wanted = std::min(limit_bytes - done, kChunkBytes);
      bytes.resize(static_cast<std::size_t>(done + wanted));
      const std::int64_t got = read_into(bytes.data() + done, wanted);
      done += got;
      bytes.resize(static_cast<std::size_t>(done));
      if (got < wanted) break;
    }
  } catch (const std::bad_alloc&) {
    fail("memory ran out after " + std::to_string(bytes.size()) + " bytes");
  }
  return bytes;
}

std::vector<std::uint8_t> DataFile::read_all() {
  return read(std::numeric_limits<std::int64_t>::max());
}

}  // namespace layup
