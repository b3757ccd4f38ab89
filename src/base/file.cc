#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file_cache.h"
#include "base/mapping_guard.h"
#include "base/unfinished_file.h"

namespace sluice {
namespace {

constexpr size_t kMostTextBytes = size_t{1} << 28;

/// A file descriptor that closes itself.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd > STDERR_FILENO) ::close(fd);
  }
};

const char* kind_name(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

void check_regular(const std::string& path, const struct stat& info) {
  if (!S_ISREG(info.st_mode)) fail("{}: is {}, expected a regular file", path, kind_name(info.st_mode));
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // What is no file is not even opened: a pipe would wait for its writer, a socket cannot be, and a device
  // may do something. It may become one in between, and opening does not wait then either.
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) fail("{}: {}", path, std::strerror(errno));
  check_regular(path, info);
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0) fail("{}: {}", path, std::strerror(errno));
  check_regular(path, info);
  if (info.st_size == 0) fail("{}: the file is empty", path);
  size_ = static_cast<size_t>(info.st_size);
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd, 0);
  if (address == MAP_FAILED) fail("{}: cannot be mapped: {}", path, std::strerror(errno));
  data_ = static_cast<const std::byte*>(address);
  guard_mapping(bytes(), path_);
  know_mapping(bytes(), std::exchange(file.fd, -1));
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  unguard_mapping(data_);
  forget_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

std::string read_file(const std::string& path) {
  const bool piped = path == "-";
  const std::string name = piped ? "standard input" : path;
  const Descriptor file{piped ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) fail("{}: {}", name, std::strerror(errno));
  std::string content;
  char buffer[1 << 16];
  while (true) {
    const ssize_t got = ::read(file.fd, buffer, sizeof buffer);
    if (got == 0) return content;
    if (got > 0) {
      content.append(buffer, static_cast<size_t>(got));
      if (content.size() > kMostTextBytes)
        fail("{}: is longer than the {} MiB that a text may have", name, kMostTextBytes >> 20);
    } else if (errno != EINTR) {
      fail("{}: {}", name, std::strerror(errno));
    }
  }
}

void write_file(const std::string& path, std::span<const std::byte> bytes) {
  std::optional<UnfinishedFile> unfinished;
  const Descriptor file{open_unfinished(path, unfinished)};
  if (file.fd < 0) fail("{}: {}", path, std::strerror(errno));
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(file.fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const int reason = errno;
      if (unfinished) ::unlink(path.c_str());
      fail("{}: {}", path, std::strerror(reason));
    }
    bytes = bytes.subspan(static_cast<size_t>(wrote));
  }
}

}  // namespace sluice
