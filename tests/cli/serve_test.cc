// sluice serve as a process: what it says, what its flags do, and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "cli/service_manager.h"
#include "support/command.h"
#include "support/connection.h"
#include "support/served.h"

namespace sluice::cli {
namespace {

using test::Connection;
using test::Served;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class ServeTest : public testing::Test, public test::CommandFolder {
 protected:
  ServeTest() : CommandFolder("serve") {}
};

std::string reply(const Served& served, const std::string& method, const std::string& path,
                  const std::string& body = {}) {
  Connection connection(served.port());
  if (!connection.connected()) return "";
  connection.send(method, path, body);
  return connection.read();
}

const char kLongTale[] =
    R"({"prompt": "Once upon a time", "stream": true, "ignore_eos": true, "temperature": 0, "max_tokens": 600})";

TEST_F(ServeTest, SaysWhatItServesAndEndsWhenAsked) {
  Served served(*this, {"--port", "0", "-c", "512"});
  ASSERT_GT(served.port(), 0) << served.log();
  EXPECT_THAT(served.log(), StartsWith("sluice: http://127.0.0.1:"));
  for (const char* part : {" is loading\n", "  model    ", "backend ", "  context  512 of ", "  memory   "})
    EXPECT_THAT(served.log(), HasSubstr(part));
  Connection health(served.port());
  health.send("GET", "/health");
  EXPECT_THAT(health.read(), StartsWith("HTTP/1.1 200 "));
  served.signal(SIGTERM);
  EXPECT_EQ(served.wait(), 0) << served.log();
  EXPECT_THAT(served.log(), testing::EndsWith("sluice: stopped\n"));
}

/// What a service manager hears, at a socket of its own.
class Manager {
 public:
  explicit Manager(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    ::bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  ~Manager() {
    ::unsetenv("NOTIFY_SOCKET"), ::unsetenv("WATCHDOG_USEC"), ::unsetenv("WATCHDOG_PID");
    ::close(socket_);
  }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  /// The next word, or nothing within this time.
  std::string heard(int ms) const {
    pollfd wait{socket_, POLLIN, 0};
    if (::poll(&wait, 1, ms) <= 0) return "";
    char bytes[256];
    const ssize_t got = ::recv(socket_, bytes, sizeof bytes, 0);
    return {bytes, static_cast<size_t>(std::max<ssize_t>(got, 0))};
  }

 private:
  int socket_;
};

TEST_F(ServeTest, AServiceManagerHearsWhenItIsReadyLivesAndEnds) {
  const Manager manager(path("notify"));
  ::setenv("WATCHDOG_USEC", "1000000", 1);
  Served served(*this, {"--port", "0", "-c", "512"});
  ASSERT_GT(served.port(), 0) << served.log();
  EXPECT_EQ(manager.heard(60'000), "EXTEND_TIMEOUT_USEC=60000000");
  EXPECT_EQ(manager.heard(60'000), "READY=1");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(manager.heard(60'000), "WATCHDOG=1");
  Connection tale(served.port());  // and while it works
  tale.send("POST", "/v1/completions", kLongTale);
  EXPECT_EQ(manager.heard(60'000), "WATCHDOG=1");
  served.signal(SIGTERM);
  std::string word;
  while (word = manager.heard(60'000), word == "WATCHDOG=1") continue;
  EXPECT_EQ(word, "STOPPING=1");
  EXPECT_EQ(served.wait(), 0) << served.log();
}

TEST_F(ServeTest, AWatchdogOfAnotherProcessHearsNothing) {
  const Manager manager(path("notify"));
  ::setenv("WATCHDOG_USEC", "100000", 1);
  ::setenv("WATCHDOG_PID", "1", 1);
  Served served(*this, {"--port", "0", "-c", "512"});
  ASSERT_GT(served.port(), 0) << served.log();
  EXPECT_EQ(manager.heard(60'000), "EXTEND_TIMEOUT_USEC=60000000");
  EXPECT_EQ(manager.heard(60'000), "READY=1");
  EXPECT_EQ(manager.heard(1'500), "");
}

TEST(ServiceManager, CallsAnEngineThatStandsStillDead) {
  const test::CommandFolder folder("manager");
  const Manager heard(folder.path("notify"));
  ::setenv("WATCHDOG_USEC", "2", 1);  // every microsecond
  ServiceManager manager;
  manager.look(true, 5);
  EXPECT_EQ(heard.heard(1'000), "WATCHDOG=1");
  manager.look(true, 5);  // work, and no step since
  EXPECT_EQ(heard.heard(50), "");
  manager.look(true, 6);
  EXPECT_EQ(heard.heard(1'000), "WATCHDOG=1");
  manager.look(false, 6);  // nothing to do
  EXPECT_EQ(heard.heard(1'000), "WATCHDOG=1");
}

TEST(ServiceManager, AsksForMoreTimeWhileAModelIsFetchedAndLoaded) {
  const test::CommandFolder folder("manager");
  const Manager heard(folder.path("notify"));
  ::setenv("WATCHDOG_USEC", "2", 1);
  ServiceManager manager;
  manager.loading();
  EXPECT_EQ(heard.heard(1'000), "EXTEND_TIMEOUT_USEC=60000000");
  manager.loading();  // often: it is asked for every ten seconds
  EXPECT_EQ(heard.heard(50), "");
  manager.ready();
  EXPECT_EQ(heard.heard(1'000), "READY=1");
  manager.look(false, 0);  // signs of life begin at once
  EXPECT_EQ(heard.heard(1'000), "WATCHDOG=1");
}

TEST_F(ServeTest, ManyMoreAnswersThanAStepOfAPromptHasRows) {
  Served served(*this, {"--port", "0", "-c", "64", "--parallel", "600", "--rows", "100"});
  ASSERT_GT(served.port(), 0) << served.log();
  EXPECT_THAT(served.log(), HasSubstr(", 600 requests at once"));
  Connection asked(served.port());
  asked.send("POST", "/v1/completions", R"({"prompt": "Once upon", "max_tokens": 3})");
  EXPECT_THAT(asked.read(), HasSubstr(R"("finish_reason":"length")"));
}

TEST_F(ServeTest, RequestsAreTakenWhileRoutersLearnThatItStops) {
  Served served(*this, {"--port", "0", "-c", "256", "--drain-delay", "2"});
  ASSERT_GT(served.port(), 0) << served.log();
  EXPECT_THAT(reply(served, "GET", "/ready"), StartsWith("HTTP/1.1 200"));
  served.signal(SIGTERM);
  served.wait_for("until then requests are taken");
  EXPECT_THAT(reply(served, "GET", "/ready"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(reply(served, "POST", "/v1/completions", R"({"prompt": "Once", "max_tokens": 1})"),
              StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(served.wait(), 0) << served.log();
}

TEST_F(ServeTest, AnswersThatRunMayEndAndNewOnesAreRefused) {
  Served served(*this, {"--port", "0", "-c", "1024", "-t", "1"});
  ASSERT_GT(served.port(), 0) << served.log();
  Connection tale(served.port());
  tale.send("POST", "/v1/completions",
            R"({"prompt": "Once upon a time", "n": 4, "stream": true, "ignore_eos": true, "temperature": 0,
                "max_tokens": 1000})");
  tale.read("data: ");
  served.signal(SIGTERM);
  served.wait_for("stopping");
  // It says so before it refuses.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  const std::string more = R"({"prompt": "Once", "max_tokens": 1})";
  std::string refused;
  while (!refused.starts_with("HTTP/1.1 503") && std::chrono::steady_clock::now() < until)
    refused = reply(served, "POST", "/v1/completions", more);
  EXPECT_THAT(refused, HasSubstr("the server is stopping"));
  EXPECT_THAT(refused, AllOf(HasSubstr("Retry-After: 1"), HasSubstr("Connection: close")));
  // Whoever looks after it learns why it is not ready, and that it lives.
  EXPECT_THAT(reply(served, "GET", "/ready"),
              AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("the server is stopping")));
  EXPECT_THAT(reply(served, "GET", "/live"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(reply(served, "GET", "/health"), StartsWith("HTTP/1.1 200"));
  const std::string metrics = reply(served, "GET", "/metrics");
  EXPECT_THAT(metrics, AllOf(HasSubstr("\nsluice_ready 0\n"), HasSubstr("\nsluice_requests_running 4\n")));
  const std::string all = tale.read(), last = all.substr(all.size() - std::min<size_t>(all.size(), 400));
  EXPECT_THAT(last, HasSubstr(R"("finish_reason":"length")"));
  EXPECT_THAT(last, HasSubstr("data: [DONE]"));
  EXPECT_EQ(served.wait(), 0) << served.log();
}

TEST_F(ServeTest, ASecondSignalEndsAnswersWithAnError) {
  Served served(*this, {"--port", "0", "-c", "1024", "--parallel", "8"});
  ASSERT_GT(served.port(), 0) << served.log();
  Connection tale(served.port());
  tale.send("POST", "/v1/completions", kLongTale);
  tale.read("data: ");
  served.signal(SIGTERM);
  served.wait_for("stopping");
  served.signal(SIGTERM);
  const std::string all = tale.read(), last = all.substr(all.size() - std::min<size_t>(all.size(), 200));
  if (all.find(R"("finish_reason":"length")") == std::string::npos) {  // it may have been faster
    EXPECT_THAT(last, HasSubstr(R"(data: {"error":{"message":"the server is shutting down")"));
  }
  EXPECT_EQ(served.wait(), 0) << served.log();
}

TEST_F(ServeTest, AKilledServerLeavesNothingThatHindersTheNext) {
  const std::string socket = path("socket");
  for (int i = 0; i < 2; ++i) {
    Served served(*this, {"--unix-socket", socket, "-c", "64"});
    Connection asked(socket);
    ASSERT_TRUE(asked.connected()) << served.log();
    asked.send("GET", "/v1/models");
    EXPECT_THAT(asked.read(), StartsWith("HTTP/1.1 200 "));
    served.signal(SIGKILL);
    EXPECT_EQ(served.wait(), -1);
  }
}

TEST_F(ServeTest, WhatCannotBeServedIsOneLine) {
  Served first(*this, {"--port", "0", "-c", "64"});
  ASSERT_GT(first.port(), 0) << first.log();
  const std::string taken = std::to_string(first.port());
  const struct {
    std::string flags, message;
  } cases[] = {
      {"--port " + taken, taken},
      {"--port 0 -c 1000000", "-c 1000000: the model was made for a context of"},
      {"--port 0 -c 512 --cache-tokens 100", "--cache-tokens 100: less than the context of 512"},
      {"--port 0 --api-key-file " + path("none"), path("none")},
      {"--port 0 --tls-cert " + path("none") + " --tls-key " + path("none"), path("none")},
      {"--port 0 -m " + path("none"), path("none")},
  };
  for (const auto& [flags, message] : cases) {
    const test::CommandResult result = run("serve " + flags);
    EXPECT_EQ(result.code, 1) << flags;
    EXPECT_THAT(result.err, HasSubstr(message)) << flags;
    const auto last = result.err.find("is loading\n");  // the address may have been told by then
    const std::string error = last == std::string::npos ? result.err : result.err.substr(last + 11);
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << result.err;
  }
}

}  // namespace
}  // namespace sluice::cli
