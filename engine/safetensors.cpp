// SPDX-License-Identifier: Apache-2.0
#include "engine/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "engine/error.h"
#include "engine/json_node.h"
#include "engine/safetensors_format.h"

namespace layup {
namespace {

// Of a checksum: what of the file is in memory at one time.
constexpr std::int64_t kWindowBytes = std::int64_t{16} << 20;

struct Bytes {
  const char* data = nullptr;
  std::int64_t bytes = 0;
};

// Carries the file's name, so that every complaint has it.
class Checker {
 public:
  explicit Checker(const std::filesystem::path& path) : path_(path.string()) {}
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(path_ + ": not a good safetensors file: " + what);
  }
  [[noreturn]] void fail(const std::string& tensor, const std::string& what) const {
    fail("tensor \"" + tensor + "\": " + what);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string_view find_header(const Bytes& file, const Checker& check) {
  if (file.bytes < kLengthBytes)
    check.fail("it has " + std::to_string(file.bytes) +
               " bytes, fewer than the length of a header");
  std::uint64_t length = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i)
    length = length << 8U | static_cast<unsigned char>(file.data[i]);
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes))
    check.fail("its header has " + std::to_string(length) + " bytes; at most " +
               std::to_string(kMaxHeaderBytes) + " are allowed");
  if (static_cast<std::int64_t>(length) > file.bytes - kLengthBytes)
    check.fail("it ends within its header (" + std::to_string(length) + " bytes of header, " +
               std::to_string(file.bytes) + " bytes in all)");
  const std::string_view header(file.data + kLengthBytes, length);
  if (!header.starts_with('{')) check.fail("its header does not start with \"{\"");
  return header;
}

JsonNode parse_header(std::string_view header, const Checker& check) {
  try {
    return parse_json(header, "header");
  } catch (const ConfigError& error) {
    check.fail(error.what());
  }
}

Metadata read_metadata(const JsonNode& node, const Checker& check) {
  Metadata metadata;
  if (node.object() == nullptr) check.fail("\"__metadata__\" is not an object");
  for (const JsonMember& member : *node.object()) {
    const auto* text = std::get_if<std::string>(&member.second.value);
    if (text == nullptr) check.fail("metadata \"" + member.first + "\" is not a string");
    metadata.emplace_back(member.first, *text);
  }
  return metadata;
}

StoredType read_type(const std::string& name, const JsonNode* node, const Checker& check) {
  const auto* text = node == nullptr ? nullptr : std::get_if<std::string>(&node->value);
  if (text == nullptr) check.fail(name, "\"dtype\" is missing or not a string");
  for (const StoredType type : {StoredType::f32, StoredType::i64, StoredType::i32, StoredType::u8})
    if (*text == stored_name(type)) return type;
  check.fail(name, "dtype \"" + *text + "\" is not supported (F32, I64, I32 and U8 are)");
}

std::vector<std::int64_t> read_counts(const std::string& name, const char* key,
                                      const JsonNode* node, const Checker& check) {
  std::vector<std::int64_t> counts;
  const JsonNode::Array* list = node == nullptr ? nullptr : node->array();
  if (list == nullptr) check.fail(name, std::string("\"") + key + "\" is missing or not a list");
  for (const JsonNode& item : *list) {
    const auto* count = std::get_if<std::int64_t>(&item.value);
    if (count == nullptr || *count < 0)
      check.fail(name, std::string("\"") + key +
                           "\" has an entry that is not a whole number of 0 "
                           "or more");
    counts.push_back(*count);
  }
  return counts;
}

std::int64_t count_bytes(const TensorBlob& tensor, const Checker& check) {
  try {
    return checked_multiply(num_elements(tensor.shape), size_bytes(tensor.type));
  } catch (const GraphError&) {
    check.fail(tensor.name, "shape " + to_string(tensor.shape) + " has more bytes than 63 bits");
  }
}

TensorBlob read_tensor(const std::string& name, const JsonNode& node, const Bytes& data,
                       const Checker& check) {
  if (node.object() == nullptr) check.fail(name, "its entry is not an object");
  for (const JsonMember& member : *node.object()) {
    const std::string& key = member.first;
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      check.fail(name, "unknown key \"" + key + "\"");
  }
  TensorBlob tensor;
  tensor.name = name;
  tensor.type = read_type(name, node.find("dtype"), check);
  tensor.shape = read_counts(name, "shape", node.find("shape"), check);
  tensor.bytes = count_bytes(tensor, check);
  const auto offsets = read_counts(name, "data_offsets", node.find("data_offsets"), check);
  if (offsets.size() != 2) check.fail(name, "\"data_offsets\" must be two numbers");
  const std::string range =
      "data_offsets [" + std::to_string(offsets[0]) + ", " + std::to_string(offsets[1]) + "]";
  if (offsets[0] > offsets[1]) check.fail(name, range + " end before they begin");
  if (offsets[1] > data.bytes)
    check.fail(name, range + " end behind the " + std::to_string(data.bytes) +
                         " bytes of data; the file is cut short");
  if (offsets[1] - offsets[0] != tensor.bytes)
    check.fail(name, range + " do not fit " + stored_name(tensor.type) + to_string(tensor.shape) +
                         ", which has " + std::to_string(tensor.bytes) + " bytes");
  tensor.data = data.data + offsets[0];
  return tensor;
}

// The data must be covered exactly once.
void check_coverage(const std::vector<TensorBlob>& tensors, const Bytes& data,
                    const Checker& check) {
  std::vector<const TensorBlob*> order;
  for (const TensorBlob& tensor : tensors) order.push_back(&tensor);
  const auto begin_of = [&](const TensorBlob* tensor) {
    return static_cast<const char*>(tensor->data) - data.data;
  };
  std::sort(order.begin(), order.end(), [&](const TensorBlob* a, const TensorBlob* b) {
    return std::pair(begin_of(a), a->bytes) < std::pair(begin_of(b), b->bytes);
  });
  std::int64_t end = 0;
  for (const TensorBlob* tensor : order) {
    if (begin_of(tensor) < end) check.fail(tensor->name, "its data overlaps that of another one");
    if (begin_of(tensor) > end)
      check.fail(tensor->name, "there is a hole of " + std::to_string(begin_of(tensor) - end) +
                                   " bytes before its data");
    end += tensor->bytes;
  }
  if (end != data.bytes)
    check.fail(std::to_string(data.bytes - end) + " bytes behind the last tensor belong to none");
}

// Pages of the mapping that lie wholly within the range; reading them again maps them again.
void drop_pages(const void* data, std::int64_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
  const auto end =
      (reinterpret_cast<std::uintptr_t>(data) + static_cast<std::uintptr_t>(bytes)) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void check_checksum(std::string_view header, const Bytes& data, const std::string& expected,
                    const Checker& check) {
  const std::size_t at = header.find(kChecksumPrefix);
  if (at == std::string_view::npos || expected.size() != kChecksumDigits)
    check.fail("its checksum \"layup.crc32\" cannot be read");
  const std::size_t digits = at + kChecksumPrefix.size();
  const std::string_view tail = header.substr(digits + kChecksumDigits);
  const std::string zeros(kChecksumDigits, '0');
  std::uint32_t crc = crc32_of(0, header.data(), static_cast<std::int64_t>(digits));
  crc = crc32_of(crc, zeros.data(), static_cast<std::int64_t>(zeros.size()));
  crc = crc32_of(crc, tail.data(), static_cast<std::int64_t>(tail.size()));
  for (std::int64_t begin = 0; begin < data.bytes; begin += kWindowBytes) {
    const std::int64_t bytes = std::min(kWindowBytes, data.bytes - begin);
    crc = crc32_of(crc, data.data + begin, bytes);
    drop_pages(data.data + begin, bytes);
  }
  if (checksum_text(crc) != expected)
    check.fail("its checksum is " + checksum_text(crc) + ", " + expected +
               " was written: the file is damaged");
}

}  // namespace

void SafetensorsFile::drop(const TensorBlob& tensor) { drop_pages(tensor.data, tensor.bytes); }

void detail::Unmap::operator()(const void* address) const {
  ::munmap(const_cast<void*>(address), static_cast<std::size_t>(bytes));
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  const Checker check(path);
  const auto system_error = [&](int error) {
    return DataError("cannot read " + check.path() + ": " + std::generic_category().message(error));
  };
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw system_error(errno);
  struct ::stat status {};
  const bool regular = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const auto file_bytes = static_cast<std::size_t>(regular ? status.st_size : 0);
  void* address = MAP_FAILED;
  if (file_bytes > 0) address = ::mmap(nullptr, file_bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int error = errno;
  ::close(descriptor);
  if (!regular) throw DataError("cannot read " + check.path() + ": it is not a file");
  if (file_bytes > 0 && address == MAP_FAILED) throw system_error(error);

  SafetensorsFile file;
  const Bytes whole{file_bytes > 0 ? static_cast<const char*>(address) : nullptr,
                    static_cast<std::int64_t>(file_bytes)};
  if (file_bytes > 0) file.mapping_ = {address, detail::Unmap{whole.bytes}};
  const std::string_view header = find_header(whole, check);
  const Bytes data{header.data() + header.size(),
                   whole.bytes - kLengthBytes - static_cast<std::int64_t>(header.size())};
  const JsonNode root = parse_header(header, check);
  for (const JsonMember& member : *root.object()) {
    const std::string& name = member.first;
    if (name == kMetadataKey) {
      file.metadata_ = read_metadata(member.second, check);
    } else {
      file.index_.emplace(name, file.tensors_.size());
      file.tensors_.push_back(read_tensor(name, member.second, data, check));
    }
  }
  check_coverage(file.tensors_, data, check);
  if (const std::string* expected = file.find_metadata(kChecksumKey))
    check_checksum(header, data, *expected, check);
  return file;
}

const std::string* SafetensorsFile::find_metadata(std::string_view key) const {
  for (const auto& [name, text] : metadata_)
    if (name == key) return &text;
  return nullptr;
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const TensorBlob& tensor : tensors_) names.push_back(tensor.name);
  return names;
}

const TensorBlob* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace layup
