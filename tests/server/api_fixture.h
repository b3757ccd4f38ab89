// The server of the API tests, with a model that says what a test tells it to, and what they ask it.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/client.h"
#include "server/parrot.h"

namespace sluice::test {

/// Two tools, and a text that thinks, speaks and calls both.
inline const nlohmann::json kTools =
    nlohmann::json::parse(R"([{"type":"function","function":{"name":"weather","description":"of a city",
  "parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}},
  {"type":"function","function":{"name":"clock","parameters":{"type":"object","properties":{}}}}])");
inline const std::string kCalls =
    "Let me see.</think>I look it up.<tool_call>weather<arg_key>city</arg_key><arg_value>Bern</arg_value>"
    "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>clock</tool_call>";

/// One server for all of a suite's tests.
class Api : public testing::Test {
 protected:
  using json = nlohmann::json;
  static void SetUpTestSuite() { server_ = new ParrotServer; }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }
  static json chat(json more = json::object()) {
    json body = {{"model", "any"}, {"messages", {{{"role", "user"}, {"content", "Hello?"}}}}};
    body.update(more);
    return body;
  }
  Reply post(const std::string& path, const json& body, const std::string& headers = "") {
    return Client(server_->port()).post(path, body, headers);
  }
  Reply get(const std::string& path) { return Client(server_->port()).ask("GET", path); }
  void say(const std::string& reply) { server_->parrot.say(reply); }
  /// The data of a stream's events; the last one must be [DONE].
  static std::vector<json> chunks(const Reply& reply) {
    std::vector<json> list;
    EXPECT_EQ(reply.status, 200);
    auto events = reply.events();
    if (events.empty() || events.back() != "[DONE]")
      ADD_FAILURE() << reply.body;
    else
      events.pop_back();
    for (const std::string& event : events) list.push_back(json::parse(event));
    return list;
  }

  static inline ParrotServer* server_ = nullptr;
};

}  // namespace sluice::test
