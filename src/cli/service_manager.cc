#include "cli/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace sluice::cli {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Half of the time within which a sign of life is expected; 0: none is, or not of this process.
int64_t watchdog_interval_ns() {
  const std::string process = variable("WATCHDOG_PID");
  if (!process.empty() && process != std::to_string(::getpid())) return 0;
  const long long us = std::strtoll(variable("WATCHDOG_USEC").c_str(), nullptr, 10);
  return us > 0 && us < INT64_MAX / 1000 ? us * 1000 / 2 : 0;
}

}  // namespace

ServiceManager::ServiceManager() : socket_(variable("NOTIFY_SOCKET")), interval_ns_(watchdog_interval_ns()) {}

void ServiceManager::loading() {
  const int64_t now = now_ns();
  if (now < next_ns_) return;
  next_ns_ = now + 10'000'000'000;
  tell("EXTEND_TIMEOUT_USEC=60000000");
}

void ServiceManager::ready() {
  next_ns_ = 0;
  tell("READY=1");
}

void ServiceManager::look(bool busy, int64_t steps) {
  const int64_t now = now_ns();
  if (interval_ns_ == 0 || now < next_ns_) return;
  if (busy && steps == steps_) return;  // asked again soon
  steps_ = steps;
  next_ns_ = now + interval_ns_;
  tell("WATCHDOG=1");
}

// One datagram. That it is lost is no reason to stop serving.
void ServiceManager::tell(const std::string& state) const {
  sockaddr_un address{};
  if (socket_.empty() || socket_.size() >= sizeof address.sun_path) return;
  const int file = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (file < 0) return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (socket_[0] == '@') address.sun_path[0] = '\0';  // a name that is in no file system
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  ::sendto(file, state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), size);
  ::close(file);
}

}  // namespace sluice::cli
