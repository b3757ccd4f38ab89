// Tool calls over all APIs, with the chat templates of several families.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "server/api_fixture.h"

namespace sluice::server {
namespace {

using json = nlohmann::json;
using test::Client;
using test::kTools;
using test::ParrotServer;
using testing::HasSubstr;

struct CallServer : ParrotServer {
  explicit CallServer(const std::string& chat_template)
      : ParrotServer(test::quick_server(), roomy(), chat_template) {}
  static engine::EngineOptions roomy() {
    engine::EngineOptions options = small();
    options.context = 8192;
    return options;
  }
  test::Reply post(const std::string& path, const json& body) { return Client(port()).post(path, body); }
};

/// A conversation with two calls and their results.
json called_before() {
  return json::parse(R"([{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[
    {"id":"functions.clock:0","type":"function","function":{"name":"clock","arguments":"{}"}},
    {"id":"functions.clock:1","type":"function","function":{"name":"clock","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"functions.clock:0","content":"noon"},
    {"role":"tool","tool_call_id":"functions.clock:1","content":"one"},{"role":"user","content":"y"}])");
}

TEST(ApiCalls, KimisCallsKeepItsNamesForThem) {
  CallServer server("Kimi-K2-Instruct");
  server.parrot.say(
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.clock:0<|tool_call_argument_begin|>{}"
      "<|tool_call_end|><|tool_call_begin|>functions.weather:1<|tool_call_argument_begin|>{\"city\":\"Bern\"}"
      "<|tool_call_end|><|tool_calls_section_end|>");
  const json user = json::parse(R"([{"role":"user","content":"x"}])");
  const auto ids = [&](const json& messages) {
    const json message =
        server.post("/v1/chat/completions", {{"messages", messages}, {"tools", kTools}}).json()["choices"][0];
    std::vector<std::string> list;
    for (const json& call : message["message"]["tool_calls"]) list.push_back(call["id"]);
    return list;
  };
  EXPECT_EQ(ids(user), (std::vector<std::string>{"functions.clock:0", "functions.weather:1"}));
  EXPECT_EQ(ids(called_before()), (std::vector<std::string>{"functions.clock:2", "functions.weather:3"}));
  const json flat = {{{"type", "function"}, {"name", "clock"}}, {{"type", "function"}, {"name", "weather"}}};
  const json response = server.post("/v1/responses", {{"input", "x"}, {"tools", flat}}).json();
  EXPECT_EQ(response["output"][1]["call_id"], "functions.weather:1") << response;
  for (const bool stream : {false, true}) {
    const auto reply =
        server.post("/v1/messages", {{"max_tokens", 400},
                                     {"messages", user},
                                     {"stream", stream},
                                     {"tools", {{{"name", "clock"}, {"input_schema", json::object()}}}}});
    EXPECT_THAT(reply.body, HasSubstr("\"id\":\"functions.weather:1\""));
  }
}

TEST(ApiCalls, ModelsWithoutAFormOfCallsHaveAGeneralOne) {
  CallServer server("DeepSeek-V2-Lite-Chat");
  server.parrot.say(
      "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>");
  const json choice = server.post("/v1/chat/completions", {{"messages", called_before()}, {"tools", kTools}})
                          .json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls") << choice;
  EXPECT_EQ(choice["message"]["content"], "Let me see.");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\":\"Bern\"}");
  const json prompt =
      server.post("/apply-template", {{"messages", called_before()}, {"tools", kTools}}).json()["prompt"];
  EXPECT_THAT(prompt.get<std::string>(), HasSubstr("<tool_response>\nnoon\n</tool_response>"));
}

TEST(ApiCalls, NoTemplateRefusesTools) {
  size_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator(SLUICE_SOURCE_DIR "/tests/text/templates")) {
    if (file.path().extension() != ".jinja") continue;
    CallServer server(file.path().stem());
    server.parrot.say("</think>Hi");
    const json bare = {{{"type", "function"}, {"function", {{"name", "clock"}}}}};
    for (const json& messages : {json::parse(R"([{"role":"user","content":"x"}])"), called_before()}) {
      for (const json& tools : {kTools, bare}) {
        const json body = {{"messages", messages}, {"tools", tools}, {"max_tokens", 5}};
        const auto reply = server.post("/v1/chat/completions", body);
        EXPECT_EQ(reply.status, 200) << file.path() << reply.body;
      }
    }
    ++count;
  }
  EXPECT_GT(count, 5u);
}

/// Required calls of every form are read again by its reader: the grammar and the reader agree.
TEST(ApiCalls, RequiredCallsOfAllForms) {
  size_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator(SLUICE_SOURCE_DIR "/tests/text/templates")) {
    if (file.path().extension() != ".jinja") continue;
    CallServer server(file.path().stem());
    // Where every answer may reason first, a script has to end that by itself.
    const std::string words =
        file.path().stem().string().find("gpt-oss") == std::string::npos
            ? "Certainly"
            : "<|channel|>analysis<|message|>So<|end|><|start|>assistant<|channel|>commentary";
    for (const json& choice_of_tool :
         {json("required"), json{{"type", "function"}, {"function", {{"name", "clock"}}}}}) {
      json body = {{"messages", {{{"role", "user"}, {"content", "x"}}}},
                   {"tools", json::array({kTools[1]})},
                   {"max_tokens", 400},
                   {"reasoning_effort", "none"},
                   {"tool_choice", choice_of_tool}};
      server.parrot.say(words);
      const json choice = server.post("/v1/chat/completions", body).json()["choices"][0];
      ASSERT_TRUE(choice["message"].contains("tool_calls")) << file.path() << choice;
      EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "clock");
      EXPECT_EQ(choice["message"]["content"], nullptr) << file.path();
      body["stream"] = true;
      server.parrot.say(words);
      EXPECT_THAT(server.post("/v1/chat/completions", body).body, HasSubstr("\"name\":\"clock\""))
          << file.path();
    }
    ++count;
  }
  EXPECT_GT(count, 5u);
}

/// GigaChat 3 ends its turn of words and begins one of a call: nothing stands before it where one is
/// required.
TEST(ApiCalls, GigaChatsRequiredCalls) {
  CallServer server("GigaChat3-10B-A1.8B");
  const std::string call =
      "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"weather\", \"arguments\": {\"city\": "
      "\"Bern\", \"days\": 3}}";
  for (const json& choice_of_tool :
       {json("required"), json{{"type", "function"}, {"function", {{"name", "weather"}}}}}) {
    const json body = {{"messages", called_before()}, {"tools", kTools}, {"tool_choice", choice_of_tool}};
    server.parrot.say(call);
    const json choice = server.post("/v1/chat/completions", body).json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls") << choice;
    EXPECT_EQ(choice["message"]["content"], nullptr);
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"city":"Bern","days":3})");
  }
}

}  // namespace
}  // namespace sluice::server
