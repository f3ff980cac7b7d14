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

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path, std::int64_t total_bytes)
    : path_(std::move(path)), temporary_(path_), total_bytes_(total_bytes) {
  temporary_ += ".tmp";
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("cannot create " + temporary_.string(), errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
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
  if (::fsync(descriptor_) != 0) fail("cannot write " + path_.string(), errno);
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
