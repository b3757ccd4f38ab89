#include "events/zmq.h"

#include <dlfcn.h>

#include <array>
#include <cstdint>

#include "base/error.h"

namespace sluice::events {
namespace {

constexpr const char* kLibrary = "libzmq.so.5";

// Of zmq.h.
constexpr int kLinger = 17, kReceiveMore = 13, kLastEndpoint = 32, kMaxMessage = 22, kSendMark = 23,
              kReceiveMark = 24;
constexpr int kDontWait = 1, kSendMore = 2;

constexpr int kLingerMs = 500;        ///< for what was sent last
constexpr int kMostMessages = 10000;  ///< that wait for one reader
constexpr int kMostRequests = 100;    ///< that wait to be read
constexpr int64_t kMostBytes = 256;   ///< of a message that comes

void* find(void* library, const char* name) {
  void* const call = ::dlsym(library, name);
  if (call == nullptr) fail("{}: there is no {} in it", kLibrary, name);
  return call;
}

}  // namespace

struct Zmq::Calls {
  void* library;
  void* (*ctx_new)();
  int (*ctx_term)(void*);
  void* (*socket)(void*, int);
  int (*close)(void*);
  int (*bind)(void*, const char*);
  int (*connect)(void*, const char*);
  int (*setsockopt)(void*, int, const void*, size_t);
  int (*getsockopt)(void*, int, void*, size_t*);
  int (*send)(void*, const void*, size_t, int);
  int (*recv)(void*, void*, size_t, int);
  int (*error)();
  const char* (*strerror)(int);

  explicit Calls(void* loaded) : library(loaded) {
    const auto take = [this](auto& call, const char* name) {
      call = reinterpret_cast<std::decay_t<decltype(call)>>(find(library, name));
    };
    take(ctx_new, "zmq_ctx_new");
    take(ctx_term, "zmq_ctx_term");
    take(socket, "zmq_socket");
    take(close, "zmq_close");
    take(bind, "zmq_bind");
    take(connect, "zmq_connect");
    take(setsockopt, "zmq_setsockopt");
    take(getsockopt, "zmq_getsockopt");
    take(send, "zmq_send");
    take(recv, "zmq_recv");
    take(error, "zmq_errno");
    take(strerror, "zmq_strerror");
  }
  const char* problem() const { return strerror(error()); }
};

Zmq::Zmq() {
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    fail("--kv-events needs {} (Debian and Ubuntu: apt-get install libzmq5): {}", kLibrary, ::dlerror());
  calls_ = std::make_unique<const Calls>(library);  // which stays loaded
  context_ = calls_->ctx_new();
  if (context_ == nullptr) fail("{}: {}", kLibrary, calls_->problem());
}

Zmq::~Zmq() { calls_->ctx_term(context_); }

Zmq::Socket::Socket(const Zmq& zmq, Type type)
    : zmq_(zmq), socket_(zmq.calls_->socket(zmq.context_, static_cast<int>(type))) {
  if (socket_ == nullptr) fail("{}: {}", kLibrary, zmq_.calls_->problem());
  const auto set = [this](int option, auto value) {
    zmq_.calls_->setsockopt(socket_, option, &value, sizeof value);
  };
  set(kLinger, kLingerMs);
  set(kSendMark, kMostMessages);
  set(kReceiveMark, kMostRequests);
  set(kMaxMessage, kMostBytes);
}

Zmq::Socket::~Socket() { zmq_.calls_->close(socket_); }

void Zmq::Socket::bind(const std::string& endpoint, const std::string& what) {
  if (zmq_.calls_->bind(socket_, endpoint.c_str()) != 0)
    fail("{} {}: {}; expected an address to listen at, as tcp://*:5557 or ipc:///run/events", what, endpoint,
         zmq_.calls_->problem());
}

void Zmq::Socket::connect(const std::string& endpoint, const std::string& what) {
  if (zmq_.calls_->connect(socket_, endpoint.c_str()) != 0)
    fail("{} {}: {}; expected a subscriber's address, as tcp://router:5557", what, endpoint,
         zmq_.calls_->problem());
}

std::string Zmq::Socket::endpoint() const {
  std::array<char, 512> text{};
  size_t size = text.size();
  if (zmq_.calls_->getsockopt(socket_, kLastEndpoint, text.data(), &size) != 0) return "";
  return text.data();
}

void Zmq::Socket::send(const std::vector<std::string_view>& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const int more = i + 1 < parts.size() ? kSendMore : 0;
    if (zmq_.calls_->send(socket_, parts[i].data(), parts[i].size(), kDontWait | more) < 0) return;
  }
}

std::vector<std::string> Zmq::Socket::receive() {
  std::vector<std::string> parts;
  std::array<char, kMostBytes> bytes;
  for (int more = 1; more != 0;) {
    const int size = zmq_.calls_->recv(socket_, bytes.data(), bytes.size(), kDontWait);
    if (size < 0) return {};
    constexpr size_t kMostParts = 8;
    if (parts.size() < kMostParts)
      parts.emplace_back(bytes.data(), std::min(static_cast<size_t>(size), bytes.size()));
    size_t length = sizeof more;
    if (zmq_.calls_->getsockopt(socket_, kReceiveMore, &more, &length) != 0) return {};
  }
  return parts;
}

}  // namespace sluice::events
