// As much of libzmq as a publisher needs, found when it is needed: a server that tells no events, and its
// packages, do without the library. The declarations are of its C interface, which is the same in all of
// versions 4.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::events {

/// The library, loaded.
class Zmq {
 public:
  /// Throws Error that says which library is missing.
  Zmq();
  Zmq(const Zmq&) = delete;
  Zmq& operator=(const Zmq&) = delete;
  /// Waits until what was sent is out, as long as sockets linger. They must have been closed.
  ~Zmq();

  /// A socket of one thread at a time.
  class Socket {
   public:
    enum class Type : int { Publisher = 1, Router = 6 };
    Socket(const Zmq& zmq, Type type);
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;
    ~Socket();

    /// Throw Error that names `what`, as in "--kv-events tcp://*:5557".
    void bind(const std::string& endpoint, const std::string& what);
    void connect(const std::string& endpoint, const std::string& what);
    /// The address that it is bound to, with its port.
    std::string endpoint() const;

    /// A message of several parts. Neither waits: what a reader is too slow for is lost to him.
    void send(const std::vector<std::string_view>& parts);
    /// Empty: there is none. Parts longer than 256 bytes are cut.
    std::vector<std::string> receive();

   private:
    const Zmq& zmq_;
    void* socket_;
  };

 private:
  struct Calls;
  std::unique_ptr<const Calls> calls_;
  void* context_ = nullptr;
};

}  // namespace sluice::events
