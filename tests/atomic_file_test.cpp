// SPDX-License-Identifier: Apache-2.0
// What is no plain file: pipes and links. Failures and crashes: see safetensors_test.cpp.
#include "engine/atomic_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "engine/error.h"
#include "tests/support/temp_folder.h"

namespace layup {
namespace {

namespace fs = std::filesystem;

using test::TempFolder;

std::string read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_CASE("a pipe is written to, not replaced") {
  const TempFolder folder;
  const fs::path pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  { const AtomicFile trial(pipe, 0); }  // neither waits for a reader nor ends one
  std::string received;
  std::thread reader([&] { received = read_bytes(pipe); });
  AtomicFile file(pipe, 6);
  file.write("abc", 3);
  file.write("def", 3);
  file.commit();
  reader.join();
  CHECK(received == "abcdef");
  CHECK(fs::is_fifo(fs::symlink_status(pipe)));
  CHECK_FALSE(fs::exists(folder / "pipe.tmp"));
}

TEST_CASE("the file that a link points to is replaced, not the link") {
  const TempFolder folder;
  fs::create_directory(folder / "data");
  fs::create_symlink("data/second", folder / "first");     // relative to the link
  fs::create_symlink("file", folder / "data" / "second");  // a link to a link
  const auto write = [&](const char* bytes) {
    AtomicFile file(folder / "first", 3);
    file.write(bytes, 3);
    file.commit();
  };
  for (const char* bytes : {"new", "abc"}) {  // first the file is not there yet
    write(bytes);
    CHECK(fs::is_symlink(folder / "first"));
    CHECK(fs::is_symlink(folder / "data" / "second"));
    CHECK(fs::is_regular_file(fs::symlink_status(folder / "data" / "file")));
    CHECK(read_bytes(folder / "data" / "file") == bytes);
  }
  fs::create_symlink("round", folder / "round");
  CHECK_THROWS_AS(AtomicFile(folder / "round", 0), DataError);
}

}  // namespace
}  // namespace layup
