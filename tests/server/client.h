// A client on a bare socket, which can do all that real ones do and much that they should not.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace sluice::test {

struct Reply {
  int status = 0;  ///< 0: the connection ended without an answer
  std::string head, body;

  /// The value of a header, or "".
  std::string header(std::string name) const {
    for (size_t at = 0; (at = head.find("\r\n", at)) != std::string::npos;) {
      at += 2;
      if (::strncasecmp(head.c_str() + at, (name + ":").c_str(), name.size() + 1) == 0) {
        const size_t begin = at + name.size() + 2;
        return head.substr(begin, head.find("\r\n", at) - begin);
      }
    }
    return "";
  }
  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
  /// The data of server-sent events, and their names in front where they have one: "name|data".
  std::vector<std::string> events() const {
    std::vector<std::string> list;
    std::string name;
    for (size_t at = 0; at < body.size();) {
      const size_t end = std::min(body.find('\n', at), body.size());
      const std::string line = body.substr(at, end - at);
      if (line.starts_with("event: ")) name = line.substr(7) + "|";
      if (line.starts_with("data: ")) list.push_back(name + line.substr(6)), name = "";
      at = end + 1;
    }
    return list;
  }
};

class Client {
 public:
  explicit Client(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  explicit Client(const std::string& unix_path) : fd_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, unix_path.c_str(), sizeof address.sun_path - 1);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  Client(Client&& other) noexcept : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_) {}
  Client& operator=(Client&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { close(); }

  bool connected() const { return connected_; }
  int fd() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void half_close() { ::shutdown(fd_, SHUT_WR); }
  /// Closes without a farewell: the other side gets a reset.
  void reset() {
    const linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  /// Some bytes; nothing when the connection has ended or nothing came in time.
  std::string receive(int timeout_ms = 120'000) {
    if (!readable(timeout_ms)) return "";
    char buffer[16 << 10];
    const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
    ended_ |= got <= 0;
    return got > 0 ? std::string(buffer, static_cast<size_t>(got)) : "";
  }
  /// Whether something can be read, or the connection has ended. Waits in short pieces: while the whole
  /// process stands still, no time passes.
  bool readable(int timeout_ms = 0) const {
    constexpr int kPiece = 20;
    pollfd wait{fd_, POLLIN, 0};
    for (; timeout_ms > kPiece; timeout_ms -= kPiece)
      if (::poll(&wait, 1, kPiece) == 1) return true;
    return ::poll(&wait, 1, timeout_ms) == 1;
  }
  /// Whether the other side has closed: waits for it, passing over what still comes.
  bool ends(int timeout_ms = 60'000) {
    while (!ended_) {
      if (!readable(timeout_ms)) return false;
      receive(0);
    }
    return true;
  }

  static std::string request(const std::string& method, const std::string& path, const std::string& body = "",
                             const std::string& headers = "") {
    std::string text = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers;
    if (!body.empty() || method == "POST") {
      text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
    }
    return text + "\r\n" + body;
  }
  Reply ask(const std::string& method, const std::string& path, const std::string& body = "",
            const std::string& headers = "") {
    if (!send(request(method, path, body, headers))) return read_reply(method == "HEAD");
    return read_reply(method == "HEAD");
  }
  Reply post(const std::string& path, const nlohmann::json& body, const std::string& headers = "") {
    return ask("POST", path, body.dump(), headers);
  }

  /// The next answer's status and headers.
  Reply read_head() {
    Reply reply;
    size_t end;
    while ((end = in_.find("\r\n\r\n")) == std::string::npos) {
      if (!more()) return reply;
    }
    reply.head = in_.substr(0, end + 2);
    in_.erase(0, end + 4);
    reply.status = std::atoi(reply.head.c_str() + 9);
    return reply.status == 100 ? read_head() : reply;
  }
  /// The next answer, its body whole: with a length, in chunks, or up to the connection's end.
  Reply read_reply(bool head_only = false) {
    Reply reply = read_head();
    if (reply.status == 0 || head_only || reply.status == 204) return reply;
    if (reply.header("Transfer-Encoding") == "chunked") {
      while (read_chunk(reply.body)) {
      }
    } else if (const std::string length = reply.header("Content-Length"); !length.empty()) {
      const size_t size = std::stoul(length);
      while (in_.size() < size && more()) {
      }
      reply.body = in_.substr(0, size);
      in_.erase(0, size);
    } else {
      while (more()) {
      }
      reply.body = std::exchange(in_, "");
    }
    return reply;
  }
  /// Adds the next chunk's bytes to `body`; false behind the last one.
  bool read_chunk(std::string& body) {
    size_t line;
    while ((line = in_.find("\r\n")) == std::string::npos)
      if (!more()) return false;
    const size_t size = std::stoul(in_.substr(0, line), nullptr, 16);
    while (in_.size() < line + 2 + size + 2)
      if (!more()) return false;
    body += in_.substr(line + 2, size);
    in_.erase(0, line + 2 + size + 2);
    return size > 0;
  }

 private:
  bool more() {
    const std::string bytes = receive();
    in_ += bytes;
    return !bytes.empty();
  }

  int fd_;
  bool connected_ = false, ended_ = false;
  std::string in_;
};

}  // namespace sluice::test
