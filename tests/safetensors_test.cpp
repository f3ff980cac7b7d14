// SPDX-License-Identifier: Apache-2.0
#include "engine/safetensors.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include "engine/error.h"
#include "engine/rng.h"
#include "tests/support/temp_folder.h"

namespace layup {
namespace {

namespace fs = std::filesystem;

using test::TempFolder;

std::string read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

template <typename T>
TensorBlob blob(const std::string& name, StoredType type, Shape shape,
                const std::vector<T>& values) {
  return {name, type, std::move(shape), values.data(),
          static_cast<std::int64_t>(values.size() * sizeof(T))};
}

const std::vector<float> kWeights = {1, -2, 3.5F, 4, 5, 6};
const std::vector<std::int64_t> kCounter = {-7};
const std::vector<std::uint8_t> kPixels = {1, 2, 255};
const std::vector<std::int32_t> kLabels = {3, -4};

std::vector<TensorBlob> example() {
  return {blob("fc.weight", StoredType::f32, {2, 3}, kWeights),
          blob("counter", StoredType::i64, {}, kCounter),
          blob("pixels \"quoted\" \u00e4", StoredType::u8, {3}, kPixels),
          blob("empty", StoredType::f32, {0, 4}, std::vector<float>{}),
          blob("labels", StoredType::i32, {2}, kLabels)};
}

const Metadata kMetadata = {{"step", "120"}, {"text", "line\n\"layup.crc32\":\"x\""}};

// A file of this header text (not padded) and data, without a checksum.
std::string file_of(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes + header + data;
}

std::string error_of(const fs::path& path) {
  try {
    SafetensorsFile::open(path);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

std::string error_of_bytes(const std::string& bytes) {
  const TempFolder folder;
  write_bytes(folder / "w.safetensors", bytes);
  const std::string error = error_of(folder / "w.safetensors");
  if (!error.empty()) CHECK(error.find("w.safetensors") != std::string::npos);
  return error;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <typename T>
bool holds(const TensorBlob* tensor, StoredType type, const Shape& shape,
           const std::vector<T>& values) {
  return tensor != nullptr && tensor->type == type && tensor->shape == shape &&
         tensor->bytes == static_cast<std::int64_t>(values.size() * sizeof(T)) &&
         (values.empty() ||
          std::memcmp(tensor->data, values.data(), values.size() * sizeof(T)) == 0);
}

TEST_CASE("what is written is read back") {
  const TempFolder folder;
  const fs::path path = folder / "a.safetensors";
  write_safetensors(path, kMetadata, example());
  SafetensorsFile opened = SafetensorsFile::open(path);
  const SafetensorsFile file = std::move(opened);  // views survive a move
  CHECK(file.names() == std::vector<std::string>{"fc.weight", "counter", "pixels \"quoted\" \u00e4",
                                                 "empty", "labels"});
  CHECK(holds(file.find("fc.weight"), StoredType::f32, {2, 3}, kWeights));
  CHECK(holds(file.find("counter"), StoredType::i64, {}, kCounter));
  CHECK(holds(file.find("pixels \"quoted\" \u00e4"), StoredType::u8, {3}, kPixels));
  CHECK(holds(file.find("empty"), StoredType::f32, {0, 4}, std::vector<float>{}));
  CHECK(holds(file.find("labels"), StoredType::i32, {2}, kLabels));
  CHECK(file.find("fc") == nullptr);
  CHECK(*file.find_metadata("step") == "120");
  CHECK(*file.find_metadata("text") == kMetadata[1].second);
  CHECK(file.find_metadata("layup.crc32")->size() == 8);
  CHECK(file.find_metadata("none") == nullptr);
  CHECK(reinterpret_cast<std::uintptr_t>(file.find("fc.weight")->data) % 64 == 0);
  CHECK_FALSE(fs::exists(folder / "a.safetensors.tmp"));
}

// Byte for byte, so that a mistake shared by writer and reader would show. The checksum is that of
// Python's zlib.crc32.
TEST_CASE("the bytes of a small file") {
  const TempFolder folder;
  const std::vector<std::uint8_t> one = {1};
  const TensorBlob tensors[] = {blob("w", StoredType::i32, {2}, kLabels),
                                blob("b", StoredType::u8, {}, one)};
  write_safetensors(folder / "a", {{"step", "7"}}, tensors);
  std::string header =
      R"({"__metadata__":{"layup.crc32":"3520c72e","step":"7"},"w":{"dtype":"I32","shape":[2],)"
      R"("data_offsets":[0,8]},"b":{"dtype":"U8","shape":[],"data_offsets":[8,9]}})";
  header.resize(184, ' ');
  const std::string data("\x03\0\0\0\xfc\xff\xff\xff\x01", 9);
  CHECK(read_bytes(folder / "a") == file_of(header, data));
}

TEST_CASE("no tensors, and a file of another program without checksum and padding") {
  const TempFolder folder;
  write_safetensors(folder / "none", {}, {});
  CHECK(SafetensorsFile::open(folder / "none").tensors().empty());

  const float value = 1.5F;
  const std::string data(reinterpret_cast<const char*>(&value), 4);
  write_bytes(folder / "b",
              file_of(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", data));
  const SafetensorsFile file = SafetensorsFile::open(folder / "b");
  CHECK(holds(file.find("x"), StoredType::f32, {1}, std::vector<float>{value}));
  CHECK(file.metadata().empty());
}

TEST_CASE("every kind of damage is refused by name") {
  const std::string data(8, 'd');
  const auto header_error = [&](const std::string& header) {
    return error_of_bytes(file_of(header, data));
  };
  const auto two = [&](const std::string& a, const std::string& b) {
    return header_error("{\"a\":{\"dtype\":\"U8\",\"shape\":" + a +
                        "},\"b\":{\"dtype\":\"U8\",\"shape\":" + b + "}}");
  };
  CHECK(two("[4],\"data_offsets\":[0,4]", "[4],\"data_offsets\":[4,8]").empty());
  CHECK(contains(two("[4],\"data_offsets\":[0,4]", "[3],\"data_offsets\":[5,8]"), "hole of 1"));
  CHECK(contains(two("[4],\"data_offsets\":[4,8]", "[3],\"data_offsets\":[1,4]"), "hole of 1"));
  CHECK(contains(two("[4],\"data_offsets\":[0,4]", "[5],\"data_offsets\":[3,8]"), "overlaps"));
  CHECK(contains(two("[4],\"data_offsets\":[0,4]", "[3],\"data_offsets\":[4,7]"),
                 "1 bytes behind the last tensor"));
  CHECK(contains(two("[4],\"data_offsets\":[0,4]", "[5],\"data_offsets\":[4,9]"), "cut short"));
  CHECK(contains(two("[4],\"data_offsets\":[0,4]", "[3],\"data_offsets\":[4,8]"),
                 "do not fit U8[3]"));
  CHECK(contains(two("[4],\"data_offsets\":[0,4]", "[4],\"data_offsets\":[8,4]"), "before they"));
  CHECK(contains(two("[4],\"data_offsets\":[0,4]", "[4],\"data_offsets\":[4]"), "two numbers"));
  CHECK(contains(two("[4],\"data_offsets\":[0,4]", "[-4],\"data_offsets\":[4,8]"), "shape"));
  CHECK(contains(two("[4],\"data_offsets\":[0,4]", "[4.5],\"data_offsets\":[4,8]"), "shape"));
  CHECK(contains(two("[4],\"data_offsets\":[0,4]", "[4]"), "\"data_offsets\" is missing"));
  CHECK(contains(two("[4],\"data_offsets\":[0,4]",
                     "[4294967296,4294967296,4294967296],\"data_offsets\":[4,8]"),
                 "63 bits"));
  CHECK(contains(two("[8],\"data_offsets\":[0,18446744073709551615]", "[0]"), "64-bit"));
  CHECK(contains(two("[8],\"data_offsets\":[0,8],\"extra\":1", "[0]"), "unknown key \"extra\""));
  CHECK(contains(header_error(R"({"a":{"dtype":"F16","shape":[4],"data_offsets":[0,8]}})"),
                 "\"F16\" is not supported"));
  CHECK(contains(header_error(R"({"a":{"shape":[8],"data_offsets":[0,8]}})"), "\"dtype\""));
  CHECK(contains(header_error(R"({"a":3})"), "not an object"));
  CHECK(contains(header_error(R"({"a":{},"a":{}})"), "duplicate key \"a\""));
  CHECK(contains(header_error(R"({"__metadata__":{"k":1}})"), "metadata \"k\" is not a string"));
  CHECK(contains(header_error(R"({"__metadata__":[]})"), "is not an object"));
  CHECK(contains(header_error("{\"a\":"), "header:1:"));
  CHECK(contains(header_error(" {}"), "does not start with \"{\""));
  CHECK(contains(header_error("[]"), "does not start with \"{\""));
  CHECK(contains(header_error(""), "does not start with \"{\""));
  CHECK(contains(header_error("{\"\xff\":{}}"), "header:1:"));
  CHECK(contains(header_error(R"({"__metadata__":{"layup.crc32":"0"}})"), "behind the last"));
  CHECK(contains(error_of_bytes(file_of(R"({"__metadata__":{"layup.crc32":"0"}})", "")),
                 "cannot be read"));
  CHECK(contains(error_of_bytes(file_of(R"({"__metadata__":{"layup\u002ecrc32":"00000000"}})", "")),
                 "cannot be read"));
  CHECK(contains(error_of_bytes(""), "0 bytes"));
  CHECK(contains(error_of_bytes("1234567"), "7 bytes"));
  CHECK(contains(error_of_bytes(std::string(8, '\xff')), "at most 100000000"));
  CHECK(contains(error_of_bytes(std::string("\x09\0\0\0\0\0\0\0{}", 10)), "within its header"));
}

TEST_CASE("what is not a readable file is refused") {
  const TempFolder folder;
  CHECK(contains(error_of(folder / "none"), "No such file"));
  CHECK(contains(error_of(folder.path()), "is not a file"));
  CHECK(contains(error_of("/dev/zero"), "is not a file"));
}

// But for the eleven letters of the checksum's own name: such a file is one without a checksum, and
// nothing else in it is damaged.
TEST_CASE("one flipped bit or a cut anywhere is noticed") {
  const TempFolder folder;
  write_safetensors(folder / "good", kMetadata, example());
  const std::string good = read_bytes(folder / "good");
  REQUIRE(error_of_bytes(good).empty());
  const fs::path path = folder / "bad";
  const std::size_t key = good.find("layup.crc32");
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
    write_bytes(path, bad);
    const bool in_key = at >= key && at < key + std::strlen("layup.crc32");
    if (!in_key) CHECK_MESSAGE(!error_of(path).empty(), "byte " << at);
    write_bytes(path, good.substr(0, at));
    CHECK_MESSAGE(!error_of(path).empty(), "cut at " << at);
  }
  write_bytes(path, good + "x");
  CHECK(contains(error_of(path), "behind the last"));
}

// Without a checksum, so that every check behind it is reached: a mutant is read or refused, and
// what is read lies within the file.
TEST_CASE("random mutants never crash") {
  const std::string good = file_of(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"I64","shape":[],"data_offsets":[8,16]},"c":{"dtype":"U8","shape":[4],)"
      R"("data_offsets":[16,20]}})",
      std::string(20, 'x'));
  const TempFolder folder;
  const fs::path path = folder / "mutant";
  int read = 0;
  int refused = 0;
  for (std::uint64_t round = 0; round < 6000; ++round) {
    std::string bytes = good;
    const int edits = 1 + static_cast<int>(philox(11, round, 0)[0] % 4);
    for (int edit = 1; edit <= edits; ++edit) {
      const Philox random = philox(11, round, edit);
      const std::size_t at = random[0] % bytes.size();
      const std::string tokens = "{}[]\",:0123456789-eE.\\u ";
      switch (random[1] % 5) {
        case 0: bytes[at] = static_cast<char>(random[2]); break;
        case 1: bytes[at] = tokens[random[2] % tokens.size()]; break;
        case 2: bytes.erase(at, 1 + random[2] % 8); break;
        case 3: bytes.insert(at, bytes.substr(random[2] % bytes.size(), random[3] % 16)); break;
        default: bytes.resize(at + 1); break;
      }
      if (bytes.empty()) bytes = "{";
    }
    write_bytes(path, bytes);
    try {
      const SafetensorsFile file = SafetensorsFile::open(path);
      std::uint32_t sum = 0;
      for (const TensorBlob& tensor : file.tensors())
        for (std::int64_t i = 0; i < tensor.bytes; ++i)
          sum += static_cast<const unsigned char*>(tensor.data)[i];
      CHECK(sum <= 255U * bytes.size());
      ++read;
    } catch (const DataError& error) {
      CHECK(contains(error.what(), "mutant"));
      ++refused;
    }
  }
  CHECK(read > 50);
  CHECK(refused > 1000);
}

TEST_CASE("names that cannot be written are refused before anything is written") {
  const TempFolder folder;
  const fs::path path = folder / "a";
  const std::vector<float> one = {1};
  const auto error = [&](const std::string& first, const std::string& second) -> std::string {
    const TensorBlob tensors[] = {blob(first, StoredType::f32, {1}, one),
                                  blob(second, StoredType::f32, {1}, one)};
    try {
      write_safetensors(path, {}, tensors);
    } catch (const DataError& e) {
      return e.what();
    }
    return "";
  };
  CHECK(contains(error("x", "x"), "named \"x\""));
  CHECK(contains(error("x", "__metadata__"), "named \"__metadata__\""));
  CHECK(contains(error("x", "\xff"), "UTF-8"));
  CHECK_FALSE(fs::exists(path));
  const TensorBlob wrong[] = {{"w", StoredType::f32, {2}, one.data(), 4}};
  CHECK_THROWS_AS(write_safetensors(path, {}, wrong), std::logic_error);
}

// A file whose every value is `value`, so that a mixture of two of them would be noticed.
void write_uniform(const fs::path& path, float value, std::size_t count) {
  const std::vector<float> values(count, value);
  const TensorBlob tensors[] = {
      blob("w", StoredType::f32, {static_cast<std::int64_t>(count)}, values)};
  write_safetensors(path, {{"value", std::to_string(static_cast<int>(value))}}, tensors);
}

std::string try_write(const fs::path& path) {
  try {
    write_uniform(path, 2, 100000);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a failed write keeps the old file and says how much space it needs") {
  const TempFolder folder;
  const fs::path path = folder / "last.safetensors";
  write_uniform(path, 1, 100000);
  const std::string before = read_bytes(path);

  SUBCASE("file too large") {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit = {100000, 100000};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      const std::string error = try_write(path);
      const bool good = contains(error, path.string()) && contains(error, "File too large") &&
                        contains(error, "400128 bytes are needed") &&
                        contains(error, "bytes are free");
      ::_exit(good ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  SUBCASE("disk full") {
    if (::access("/dev/full", W_OK) != 0) return;
    fs::create_symlink("/dev/full", folder / "last.safetensors.tmp");
    const std::string error = try_write(path);
    CHECK(contains(error, "No space left on device; 400128 bytes are needed, "));
  }
  SUBCASE("the folder is not there") {
    CHECK(contains(try_write(folder / "none" / "a"), "No such file"));
  }
  SUBCASE("the path is a folder") {
    fs::create_directory(folder / "taken");
    CHECK(contains(try_write(folder / "taken"), "cannot rename"));
    CHECK_FALSE(fs::exists(folder / "taken.tmp"));
  }
  CHECK(read_bytes(path) == before);
  CHECK_FALSE(fs::exists(fs::symlink_status(folder / "last.safetensors.tmp")));
}

TEST_CASE("a writer killed at any moment leaves a whole file") {
  const TempFolder folder;
  const fs::path path = folder / "last.safetensors";
  constexpr std::size_t kCount = 200000;
  write_uniform(path, 0, kCount);
  int killed = 0;
  for (std::uint64_t round = 0; round < 50; ++round) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (int value = 1;; ++value) write_uniform(path, static_cast<float>(value % 100), kCount);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(philox(5, 0, round)[0] % 10000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? 1 : 0;
    const SafetensorsFile file = SafetensorsFile::open(path);
    const std::string value = *file.find_metadata("value");
    const std::vector<float> expected(kCount, static_cast<float>(std::atoi(value.c_str())));
    CHECK(holds(file.find("w"), StoredType::f32, {static_cast<std::int64_t>(kCount)}, expected));
  }
  CHECK(killed == 50);
  write_uniform(path, 3, kCount);  // a leftover temporary file is no obstacle
  CHECK_FALSE(fs::exists(folder / "last.safetensors.tmp"));
}

}  // namespace
}  // namespace layup
