// A device that fails under sluice serve, as a process: what running requests hear, and how the process ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "support/command.h"
#include "support/connection.h"
#include "support/served.h"

namespace sluice::cli {
namespace {

using test::Connection;
using test::Served;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class ServeFailure : public testing::Test, public test::CommandFolder {
 protected:
  ServeFailure() : CommandFolder("serve_failure") {}

  /// A server with these flags whose device fails in the middle of an answer, which hears why.
  void fail_while_answering(Served& served) {
    ASSERT_GT(served.port(), 0) << served.log();
    Connection health(served.port()), answer(served.port());
    health.send("GET", "/health");
    EXPECT_THAT(health.read(), StartsWith("HTTP/1.1 200 "));
    answer.send("POST", "/v1/completions",
                R"({"prompt": "Once upon a time", "stream": true, "ignore_eos": true, "max_tokens": 1500})");
    ASSERT_THAT(answer.read("data: "), StartsWith("HTTP/1.1 200 "));
    served.signal(SIGUSR1);
    ASSERT_THAT(answer.read(), HasSubstr("the device is gone"));
  }
};

TEST_F(ServeFailure, EndsTheProcessForAServiceManager) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, std::vector<std::string>{"--on-failure", "exit"}}) {
    std::vector<std::string> all = {"--port", "0", "-c", "2048"};
    all.insert(all.end(), flags.begin(), flags.end());
    Served served(*this, all, SLUICE_FAILING_BINARY);
    ASSERT_NO_FATAL_FAILURE(fail_while_answering(served));
    EXPECT_EQ(served.wait(), 1);
    EXPECT_THAT(served.log(), EndsWith("\nsluice: the engine has failed: the device is gone\n"));
  }
}

TEST_F(ServeFailure, IsServedOnWithWhereThatIsWanted) {
  Served served(*this, {"--port", "0", "-c", "2048", "--on-failure", "serve"}, SLUICE_FAILING_BINARY);
  ASSERT_NO_FATAL_FAILURE(fail_while_answering(served));
  for (const auto& [method, path] : {std::pair{"GET", "/health"}, {"POST", "/v1/completions"}}) {
    Connection next(served.port());
    next.send(method, path, R"({"prompt": "a", "max_tokens": 1})");
    const std::string reply = next.read();
    EXPECT_THAT(reply, StartsWith("HTTP/1.1 503 ")) << path;
    EXPECT_THAT(reply, HasSubstr("the device is gone")) << path;
  }
  served.signal(SIGTERM);
  EXPECT_EQ(served.wait(), 0);
  EXPECT_THAT(served.log(), EndsWith("sluice: stopped\n"));
}

}  // namespace
}  // namespace sluice::cli
