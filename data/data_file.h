// SPDX-License-Identifier: Apache-2.0
// Finding and reading the files of a data set, raw or gzip-compressed. Every error is a DataError
// that names the path.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace layup {

// `path` below base_dir if that exists, else as it is. `holding` says what the folder should hold;
// DataError if there is no such folder.
std::filesystem::path find_data_folder(const std::string& path,
                                       const std::filesystem::path& base_dir,
                                       const std::string& holding);

// folder/name, else folder/name.gz, else nothing.
std::optional<std::filesystem::path> find_data_file(const std::filesystem::path& folder,
                                                    const std::string& name);
// As find_data_file; a DataError that lists what the folder holds if there is none. `hint` ends the
// message.
std::filesystem::path require_data_file(const std::filesystem::path& folder,
                                        const std::string& name, const std::string& hint = "");

// Reads one file from front to back, and through gzip if it is compressed (whatever its name says).
class DataFile {
 public:
  explicit DataFile(std::filesystem::path path);  // missing, a folder, not readable, empty

  // Reads at most limit_bytes; fewer only at the end of the file. Memory grows with what is there,
  // not with the limit. Throws for damaged or truncated gzip data and when memory runs out.
  std::vector<std::uint8_t> read(std::int64_t limit_bytes);
  std::vector<std::uint8_t> read_all();
  // Nothing is left. Reading on to here is also what makes zlib compare the checksum.
  bool at_end() { return read(1).empty(); }

  bool is_compressed() const { return is_compressed_; }
  std::int64_t file_bytes() const { return file_bytes_; }  // on disk
  // The most that can lie behind that: deflate shrinks by no more than 1032 to 1.
  std::int64_t most_content_bytes() const;
  [[noreturn]] void fail(const std::string& message) const;  // "PATH: message"

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  std::int64_t read_into(std::uint8_t* bytes, std::int64_t count);

  std::filesystem::path path_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::int64_t file_bytes_ = 0;
  bool is_compressed_ = false;
};

}  // namespace layup
