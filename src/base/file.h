// Files as bytes: a read-only mapping of a whole file, and reading or writing one at once.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace sluice {

/// A read-only memory mapping of a whole regular file. Movable; unmapped when destroyed.
/// Whoever reads a page that the file no longer has, because it was truncated meanwhile, ends the program
/// with one line that names the file and exit code 1 (mapping_guard.h).
class MappedFile {
 public:
  /// Throws Error "PATH: reason" when the file cannot be opened, is no regular file, or is empty.
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// The whole file as a string; "-" is standard input. Throws Error "PATH: reason", also of one that does not
/// end within 256 MiB (a device, a model for a prompt).
std::string read_file(const std::string& path);

/// Writes the whole file. Throws Error "PATH: reason"; a partly written file is removed.
void write_file(const std::string& path, std::span<const std::byte> bytes);

}  // namespace sluice
