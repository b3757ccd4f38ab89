#include "backend/ranks/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace sluice::backend {
namespace {

constexpr const char* kThisHost = "127.0.0.1";

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses addresses_of(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const std::string host = address.empty() ? kThisHost : address, service = std::to_string(port);
  if (const int error = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &list); error != 0)
    fail("{}: {}; MASTER_ADDR is rank 0's address", host, ::gai_strerror(error));
  return {list, ::freeaddrinfo};
}

void set(int fd, int level, int option) {
  const int on = 1;
  ::setsockopt(fd, level, option, &on, sizeof on);
}

/// A frame as it goes over the wire.
struct Head {
  uint32_t kind = 0, spare = 0;
  uint64_t bytes = 0;
};

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

Socket Socket::listen_at(const std::string& address, int port) {
  const Addresses list = addresses_of(address, port);
  int error = 0;
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    Socket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.empty()) {
      error = errno;
      continue;
    }
    set(socket.fd_, SOL_SOCKET, SO_REUSEADDR);
    const auto begin = [&](const sockaddr* where, socklen_t bytes) {
      return ::bind(socket.fd_, where, bytes) == 0 && ::listen(socket.fd_, SOMAXCONN) == 0;
    };
    if (begin(at->ai_addr, at->ai_addrlen)) return socket;
    error = errno;
    if (error != EADDRNOTAVAIL || at->ai_family != AF_INET) continue;
    // The address of something in front of this host: whatever reaches it is taken.
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_port = htons(static_cast<uint16_t>(port));
    if (begin(reinterpret_cast<const sockaddr*>(&any), sizeof any)) return socket;
    error = errno;
  }
  fail("{}:{}: {}; MASTER_PORT names another port for the ranks", address.empty() ? kThisHost : address, port,
       std::strerror(error));
}

Socket Socket::connect_to(const std::string& address, int port) {
  const Addresses list = addresses_of(address, port);
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    Socket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.empty() || ::connect(socket.fd_, at->ai_addr, at->ai_addrlen) != 0) continue;
    set(socket.fd_, IPPROTO_TCP, TCP_NODELAY);
    return socket;
  }
  return {};
}

Socket Socket::accept() const {
  Socket socket(::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.empty()) set(socket.fd_, IPPROTO_TCP, TCP_NODELAY);
  return socket;
}

std::string Socket::address() const {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  std::array<char, NI_MAXHOST> text{};
  if (::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &bytes) != 0 ||
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), bytes, text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return {};
  return text.data();
}

int Socket::port() const {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  // The port of both families lies at one place.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

void Socket::set_patience(int seconds) const {
  const timeval time{seconds, 0};
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO})
    ::setsockopt(fd_, SOL_SOCKET, option, &time, sizeof time);
}

bool Socket::write(std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  return true;
}

bool Socket::read(std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(fd_, bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return true;
}

bool Socket::write_frame(Frame kind, std::span<const std::byte> data) const {
  const Head head{static_cast<uint32_t>(kind), 0, data.size()};
  return write(std::as_bytes(std::span(&head, 1))) && write(data);
}

std::optional<Received> Socket::read_frame(uint64_t most) const {
  Head head;
  if (!read(std::as_writable_bytes(std::span(&head, 1))) || head.bytes > most) return {};
  Received received{static_cast<Frame>(head.kind), std::vector<std::byte>(head.bytes)};
  if (!read(received.data)) return {};
  return received;
}

void Socket::shut() const {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

}  // namespace sluice::backend
