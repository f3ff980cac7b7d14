// SPDX-License-Identifier: Apache-2.0
// Replaces a file in one step: whoever reads the path finds the whole old file or the whole new
// one, also after a crash or a full disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace layup {

// Writes go to "<path>.tmp" in the same folder (a leftover of a killed process is overwritten, so
// they never pile up; one writer per path). Every failure throws DataError with the path, the
// system's reason and, where it is about space, the bytes needed and free; the temporary file is
// removed and the old file stays as it was.
//
// A symbolic link stays: the file that it points to is replaced. What is there and is neither a
// file nor a folder (a device, a pipe) cannot be replaced without destroying it: it is opened by
// the first write and written to directly.
//
// A limit on file sizes (ulimit -f) is reported likewise if the process ignores SIGXFSZ; by default
// that signal ends it.
class AtomicFile {
 public:
  // `total_bytes`: what will be written in all; for error messages.
  AtomicFile(std::filesystem::path path, std::int64_t total_bytes);
  ~AtomicFile();  // without commit: removes the temporary file
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::int64_t bytes);
  // fsync, rename, fsync of the folder. To be called once, last.
  void commit();

 private:
  [[noreturn]] void fail(const std::string& what, int error) const;
  void open_special();

  std::filesystem::path path_;       // links followed
  std::filesystem::path temporary_;  // empty if path_ is written to directly
  std::int64_t total_bytes_;
  int descriptor_ = -1;
};

}  // namespace layup
