// Connections between ranks: TCP, blocking. Frames are a kind, a length and so many bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace sluice::backend {

/// What a frame is; a connection begins with Hello.
enum class Frame : uint32_t {
  Hello = 0x6b727331,  // of this protocol: "1srk"
  Welcome,
  Refused,
  Load,
  Compile,
  Step,
  Peek,
  Poke,
  Drop,
  Values,
  End,
  ReadKept,
  WriteKept,
};

/// A frame that was read.
struct Received {
  Frame kind{};
  std::vector<std::byte> data;
};

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();

  /// Listens for ranks. Empty address: this host alone. Throws Error "ADDRESS:PORT: reason".
  static Socket listen_at(const std::string& address, int port);
  /// Tries to connect; empty: nobody listens there yet. Throws Error for an address that is none.
  static Socket connect_to(const std::string& address, int port);
  /// The next connection of one that listens; empty: there was none.
  Socket accept() const;

  bool empty() const { return fd_ < 0; }
  int fd() const { return fd_; }
  /// The address of this end, in numbers.
  std::string address() const;
  /// The port of this end.
  int port() const;
  /// Reading and writing fail after so many seconds without a byte; 0: never.
  void set_patience(int seconds) const;

  // False: the connection is closed, or broken.
  bool write(std::span<const std::byte> bytes) const;
  bool read(std::span<std::byte> bytes) const;
  bool write_frame(Frame kind, std::span<const std::byte> data) const;
  /// Nothing: closed, broken, or a frame of more than `most` bytes.
  std::optional<Received> read_frame(uint64_t most) const;
  /// Whoever reads or writes, here or there, gets an end of it.
  void shut() const;

 private:
  int fd_ = -1;
};

}  // namespace sluice::backend
