// A folder of one's own for a test, and pages to put there.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstddef>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "store/page_key.h"

namespace sluice::test {

/// Removed at its end.
class OwnFolder {
 public:
  OwnFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-store-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~OwnFolder() {
    std::error_code unimportant;
    std::filesystem::remove_all(path_, unimportant);
  }
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;
  /// A path in it, where nothing is yet.
  std::filesystem::path path(const std::string& name = "cache") const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// Files of pages below a folder.
inline std::vector<std::filesystem::path> page_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && store::PageKey::from_hex(entry.path().filename().string()))
      files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

/// The key of page n, and its bytes: those that only this page has.
inline store::PageKey key_of(int n) { return store::root_key("page " + std::to_string(n)); }
inline std::vector<std::byte> bytes_of(int n, size_t count = 5000) {
  std::mt19937 random(static_cast<uint32_t>(n));
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace sluice::test
