// SPDX-License-Identifier: Apache-2.0
#include "engine/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "engine/error.h"

namespace layup {
namespace {

std::filesystem::path folder_of(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.parent_path();
  return folder.empty() ? std::filesystem::path(".") : folder;
}

// Follows links of the last component, also one that points to nothing yet; those of the folders
// are the system's work.
std::filesystem::path followed(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as the system's own limit
  std::error_code error;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, error); ++i) {
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = folder_of(path) / target;  // an absolute target stands for itself
  }
  return path;
}

bool is_special(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path, std::int64_t total_bytes)
    : path_(followed(std::move(path))), total_bytes_(total_bytes) {
  std::error_code error;
  if (std::filesystem::is_symlink(path_, error)) fail("cannot write " + path_.string(), ELOOP);
  if (is_special(path_)) {
    // Opening waits for the reader of a pipe, closing ends it: not for a trial without a write.
    if (::access(path_.c_str(), W_OK) != 0) fail("cannot write " + path_.string(), errno);
    return;
  }
  temporary_ = path_;
  temporary_ += ".tmp";
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("cannot create " + temporary_.string(), errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::open_special() {
  do descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) fail("cannot write " + path_.string(), errno);
}

void AtomicFile::fail(const std::string& what, int error) const {
  std::string text = what + ": " + std::generic_category().message(error);
  if (error == ENOSPC || error == EFBIG || error == EDQUOT) {
    std::error_code ignored;
    const auto space = std::filesystem::space(folder_of(path_), ignored);
    text += "; " + std::to_string(total_bytes_) + " bytes are needed";
    if (!ignored) text += ", " + std::to_string(space.available) + " bytes are free";
    if (error == EFBIG) text += "; see the limit on file sizes (ulimit -f)";
  }
  throw DataError(text);
}

void AtomicFile::write(const void* data, std::int64_t bytes) {
  if (descriptor_ < 0) open_special();
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    // The system takes less than 2 GiB at once.
    constexpr std::int64_t kMostAtOnce = std::int64_t{1} << 30;
    const auto chunk = static_cast<std::size_t>(std::min(bytes, kMostAtOnce));
    const ssize_t written = ::write(descriptor_, at, chunk);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot write " + path_.string(), errno);
    at += written;
    bytes -= written;
  }
}

void AtomicFile::commit() {
  if (descriptor_ < 0) open_special();
  // EINVAL: devices and pipes have nothing to sync.
  if (::fsync(descriptor_) != 0 && !(temporary_.empty() && errno == EINVAL))
    fail("cannot write " + path_.string(), errno);
  if (temporary_.empty()) {
    const int closed = ::close(descriptor_);
    descriptor_ = -1;
    if (closed != 0) fail("cannot write " + path_.string(), errno);
    return;
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    fail("cannot rename " + temporary_.string() + " to " + path_.string(), errno);
  ::close(descriptor_);
  descriptor_ = -1;  // the temporary file is gone; nothing is left to remove
  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) fail("cannot open the folder of " + path_.string(), errno);
  const int error = ::fsync(folder) == 0 ? 0 : errno;
  ::close(folder);
  // EINVAL: a file system that has no fsync of folders.
  if (error != 0 && error != EINVAL) fail("cannot sync the folder of " + path_.string(), error);
}

}  // namespace layup
