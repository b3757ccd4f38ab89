// Thousands of connections at once, over real sockets.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "server/client.h"
#include "server/http_fixture.h"

namespace sluice::server {
namespace {

using test::Client;

/// How many file descriptors this process may have, once it has asked for as many as are wanted. Only root
/// may have more than the hard limit.
size_t file_descriptors(size_t wanted) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit hard{limit.rlim_max, limit.rlim_max}, more{wanted, std::max<rlim_t>(wanted, limit.rlim_max)};
  if (::setrlimit(RLIMIT_NOFILE, &more) != 0) ::setrlimit(RLIMIT_NOFILE, &hard);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

/// Bytes of this process that are its own and in use; 0 where there is no /proc.
int64_t own_bytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(rollup, line);)
    if (line.starts_with("Private_Dirty:")) return std::atoll(line.c_str() + 14) * 1024;
  return 0;
}

/// Connections that another process holds, which has file descriptors of its own.
class Crowd {
 public:
  /// Of ten connections one asks something.
  Crowd(uint16_t port, size_t count) : fds_(count, -1) {
    EXPECT_EQ(::pipe(here_), 0);
    EXPECT_EQ(::pipe(go_), 0);
    if ((child_ = ::fork()) == 0) ::_exit(connect(port));
    char done = 0;
    ::close(std::exchange(here_[1], -1));
    connected_ = ::read(here_[0], &done, 1) == 1;
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;
  ~Crowd() {
    leave();
    ::close(here_[0]);
  }
  bool connected() const { return connected_; }
  void leave() {
    if (child_ <= 0) return;
    ::close(go_[0]);
    ::close(go_[1]);
    ::waitpid(std::exchange(child_, 0), nullptr, 0);
  }

 private:
  // In the other process: system calls alone, as this one has threads.
  int connect(uint16_t port) {
    ::close(go_[1]);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string_view request = "GET /echo HTTP/1.1\r\nHost: x\r\n\r\n";
    char byte;
    for (size_t i = 0; i < fds_.size(); ++i) {
      fds_[i] = ::socket(AF_INET, SOCK_STREAM, 0);
      if (::connect(fds_[i], reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return 1;
      if (i % 10 != 9) continue;
      if (::send(fds_[i], request.data(), request.size(), MSG_NOSIGNAL) < 0) return 1;
      if (::recv(fds_[i], &byte, 1, 0) != 1) return 1;
    }
    if (::write(here_[1], "!", 1) != 1) return 1;
    (void)!::read(go_[0], &byte, 1);  // until the other end is closed
    const linger now{1, 0};
    for (size_t i = 0; i < fds_.size(); i += 2)
      ::setsockopt(fds_[i], SOL_SOCKET, SO_LINGER, &now, sizeof now);
    return 0;
  }

  std::vector<int> fds_;
  int here_[2], go_[2];
  pid_t child_ = 0;
  bool connected_ = false;
};

TEST_F(Http, HoldsTenThousandIdleConnections) {
  constexpr size_t kWanted = 10'000, kOthers = 100;
  const size_t allowed = file_descriptors(kWanted + kOthers);
  if (allowed < kWanted + kOthers)
    GTEST_SKIP() << kWanted << " connections take " << kWanted + kOthers << " file descriptors, and "
                 << allowed << " are allowed";
  start();
  const int64_t before = own_bytes();
  Crowd crowd(server_->port(), kWanted);
  ASSERT_TRUE(crowd.connected());
  EXPECT_TRUE(wait_connections(kWanted));
  const double each = static_cast<double>(own_bytes() - before) / kWanted;
  std::printf("%zu idle connections take %.0f bytes each\n", kWanted, each);
#ifndef SLUICE_SANITIZED
  EXPECT_LT(each, 4096);
#endif
  Client one(server_->port());
  EXPECT_EQ(one.ask("GET", "/echo").status, 200);
  crowd.leave();
  EXPECT_TRUE(wait_connections(1));
  EXPECT_EQ(one.ask("GET", "/echo").status, 200);
}

TEST_F(Http, RefusesMoreConnectionsThanAllowed) {
  HttpOptions options = quick();
  options.max_connections = 2;
  start(options);
  Client one(server_->port()), two(server_->port());
  EXPECT_EQ(one.ask("GET", "/echo").status, 200);
  EXPECT_EQ(two.ask("GET", "/echo").status, 200);
  Client three(server_->port());
  EXPECT_EQ(three.read_reply().status, 503);
  two.close();
  EXPECT_TRUE(wait_connections(1));
  Client four(server_->port());
  EXPECT_EQ(four.ask("GET", "/echo").status, 200);
}

}  // namespace
}  // namespace sluice::server
