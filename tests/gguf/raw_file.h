// GGUF files made by hand, byte for byte: what no well-behaved writer would write.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "gguf/gguf.h"

namespace sluice::gguf {

/// A file under construction. Numbers go in as they are given: use sized types.
struct RawFile {
  std::string bytes;

  template <typename T>
  RawFile& number(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  RawFile& text(std::string_view text) {
    number<uint64_t>(text.size());
    bytes += text;
    return *this;
  }
  RawFile& header(uint64_t tensors, uint64_t entries, uint32_t version = 3) {
    bytes += "GGUF";
    return number(version).number(tensors).number(entries);
  }
  template <typename T>
  RawFile& entry(std::string_view key, ValueType type, T value) {
    return text(key).number(type).number(value);
  }
  RawFile& tensor(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type, uint64_t offset) {
    text(name).number(static_cast<uint32_t>(shape.size()));
    for (const uint64_t extent : shape) number(extent);
    return number(type).number(offset);
  }
  /// Padding to the default alignment, then so many bytes of tensor data.
  RawFile& data(size_t size) {
    bytes.resize((bytes.size() + 31) / 32 * 32 + size);
    return *this;
  }
};

/// The text of the Error that parsing these bytes throws; empty when it throws none. The bytes are copied
/// into a buffer of exactly their size, so that AddressSanitizer sees a read past the end.
inline std::string parse_error(std::string_view bytes) {
  const auto copy = std::make_unique<std::byte[]>(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) copy[i] = static_cast<std::byte>(bytes[i]);
  try {
    File::parse("m.gguf", {copy.get(), bytes.size()});
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// A folder of one test that disappears with it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("sluice_gguf_" + std::to_string(getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace sluice::gguf
