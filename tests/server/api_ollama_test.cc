// Ollama's API, as its clients read it.
#include <gmock/gmock.h>

#include <sstream>

#include "server/api_fixture.h"

namespace sluice::server {
namespace {

using json = nlohmann::json;
using test::Reply;
using testing::HasSubstr;

class OllamaApi : public test::Api {
 protected:
  /// A stream's lines; each must be JSON, and the last one alone is done.
  static std::vector<json> lines(const Reply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.header("content-type"), "application/x-ndjson");
    std::vector<json> list;
    std::istringstream in(reply.body);
    for (std::string line; std::getline(in, line);) list.push_back(json::parse(line));
    for (size_t i = 0; i < list.size(); ++i) EXPECT_EQ(list[i]["done"], i + 1 == list.size());
    return list;
  }
  static json ask(json more = json::object()) {
    json body = {{"model", "parrot"}, {"messages", {{{"role", "user"}, {"content", "Hello?"}}}}};
    body.update(more);
    return body;
  }
};

TEST_F(OllamaApi, ChatsInLines) {
  say("Well.</think>Hello there.");
  std::string content, thinking;
  const std::vector<json> list = lines(post("/api/chat", ask()));
  for (const json& line : list) {
    EXPECT_EQ(line["model"], "parrot");
    EXPECT_EQ(line["message"]["role"], "assistant");
    content += line["message"]["content"].get<std::string>();
    thinking += line["message"].value("thinking", "");
  }
  EXPECT_EQ(content, "Hello there.");
  EXPECT_EQ(thinking, "Well.");
  const json& last = list.back();
  EXPECT_EQ(last["done_reason"], "stop");
  EXPECT_EQ(last["message"]["content"], "");
  EXPECT_GT(last["prompt_eval_count"], 0);
  EXPECT_EQ(last["eval_count"], 26);  // a token a byte, the tag's and the end's among them
  for (const char* name : {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"})
    EXPECT_TRUE(last[name].is_number_integer()) << name;
}

TEST_F(OllamaApi, ChatsAtOnce) {
  say("Well.</think>Hello there.");
  const json answer = post("/api/chat", ask({{"stream", false}, {"think", true}})).json();
  EXPECT_EQ(answer["message"]["content"], "Hello there.");
  EXPECT_EQ(answer["message"]["thinking"], "Well.");
  EXPECT_EQ(answer["done"], true);
  say("Hello there, and more.");
  const json cut =
      post(
          "/api/chat",
          ask({{"stream", false}, {"think", false}, {"options", {{"num_predict", 5}, {"num_ctx", 1 << 20}}}}))
          .json();
  EXPECT_EQ(cut["message"]["content"], "Hello");
  EXPECT_EQ(cut["done_reason"], "length");
}

TEST_F(OllamaApi, CallsToolsWithObjects) {
  for (const bool stream : {true, false}) {
    say(test::kCalls);
    const Reply reply = post("/api/chat", ask({{"tools", test::kTools}, {"stream", stream}}));
    json calls = json::array();
    for (const json& line : stream ? lines(reply) : std::vector<json>{reply.json()})
      for (const json& call : line["message"].value("tool_calls", json::array())) calls.push_back(call);
    EXPECT_EQ(calls, json::parse(R"([{"function":{"name":"weather","arguments":{"city":"Bern","days":3}}},
                                     {"function":{"name":"clock","arguments":{}}}])"));
  }
  // A call that was cut is none: its arguments would be others.
  const std::string cut = test::kCalls.substr(0, test::kCalls.find("ern"));
  for (const bool stream : {true, false}) {
    say(cut);
    const Reply reply = post("/api/chat", ask({{"tools", test::kTools}, {"stream", stream}}));
    const std::vector<json> all = stream ? lines(reply) : std::vector<json>{reply.json()};
    for (const json& line : all) EXPECT_FALSE(line["message"].contains("tool_calls")) << line;
    EXPECT_EQ(all.back()["done_reason"], "length");
  }
  // And takes them back, without ids, with what they gave.
  say("</think>Sunny.");
  const json messages = json::parse(R"([{"role":"user","content":"Weather?"},
    {"role":"assistant","content":"","thinking":"Hm.","tool_calls":[{"function":{"name":"weather","arguments":{"city":"Bern"}}}]},
    {"role":"tool","tool_name":"weather","content":"sun"}])");
  const json answer =
      post("/api/chat", ask({{"messages", messages}, {"tools", test::kTools}, {"stream", false}})).json();
  EXPECT_EQ(answer["message"]["content"], "Sunny.") << answer;
}

TEST_F(OllamaApi, PassesOverWhatItDoesNotKnow) {
  say("</think>x");
  const json asked = ask({{"stream", false}, {"tomorrows", 1}, {"options", {{"num_gqa", 8}}}});
  EXPECT_EQ(post("/api/chat", asked).status, 200);
  EXPECT_EQ(post("/api/generate", {{"prompt", "x"}, {"stream", false}, {"tomorrows", 1}}).status, 200);
  EXPECT_EQ(post("/api/show", {{"model", "x"}, {"tomorrows", 1}}).status, 200);
}

TEST_F(OllamaApi, KeepsToAForm) {
  say(R"({"a": 1} and more)");
  const json schema =
      json::parse(R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})");
  for (const json& format : {schema, json("json")}) {
    const json answer =
        post("/api/chat", ask({{"format", format}, {"stream", false}, {"think", false}})).json();
    EXPECT_EQ(json::parse(answer["message"]["content"].get<std::string>(), nullptr, false)["a"], 1) << answer;
  }
  EXPECT_EQ(post("/api/chat", ask({{"format", "xml"}})).status, 400);
  EXPECT_EQ(post("/api/chat", ask({{"format", ""}, {"stream", false}})).status, 200);
}

TEST_F(OllamaApi, Generates) {
  say("Hm.</think>Once upon a time.");
  std::string text, thinking;
  for (const json& line :
       lines(post("/api/generate", {{"model", "x"}, {"prompt", "Begin"}, {"system", "Be brief"}}))) {
    text += line["response"].get<std::string>();
    thinking += line.value("thinking", "");
  }
  EXPECT_EQ(text, "Once upon a time.");
  EXPECT_EQ(thinking, "Hm.");
  const json raw =
      post("/api/generate", {{"model", "x"}, {"prompt", "Begin"}, {"raw", true}, {"stream", false}}).json();
  EXPECT_EQ(raw["response"], "Hm.</think>Once upon a time.");
  EXPECT_EQ(raw["prompt_eval_count"], 5);  // the prompt alone, a token a byte
}

TEST_F(OllamaApi, LoadsWhenNothingIsAsked) {
  const json chat = post("/api/chat", {{"model", "x"}, {"messages", json::array()}}).json();
  EXPECT_EQ(chat["done_reason"], "load");
  EXPECT_EQ(chat["done"], true);
  EXPECT_EQ(post("/api/generate", {{"model", "x"}, {"keep_alive", 0}}).json()["done_reason"], "load");
}

TEST_F(OllamaApi, TellsOfItsModels) {
  EXPECT_TRUE(get("/api/version").json()["version"].is_string());
  const json tags = get("/api/tags").json();
  ASSERT_EQ(tags["models"].size(), 1u);
  EXPECT_EQ(tags["models"][0]["name"], "parrot");
  EXPECT_EQ(tags["models"][0]["details"]["format"], "gguf");
  EXPECT_EQ(tags["models"][0]["digest"].get<std::string>().size(), 64u);
  EXPECT_EQ(get("/api/ps").json()["models"][0]["model"], "parrot");
  const json show = post("/api/show", {{"model", "parrot"}, {"verbose", true}}).json();
  EXPECT_EQ(show["capabilities"], json({"completion", "tools"}));
}

TEST_F(OllamaApi, RefusesInItsShape) {
  const Reply embed = post("/api/embed", {{"model", "x"}, {"input", "text"}});
  EXPECT_EQ(embed.status, 404);
  EXPECT_EQ(embed.json()["error"], "/api/embed is not part of this server");
  const struct {
    const char* path;
    json body;
    const char* message;
  } cases[] = {
      {"/api/chat", ask({{"messages", 5}}), "messages"},
      {"/api/chat", ask({{"messages", {5}}}), "messages[0]"},
      {"/api/chat", ask({{"messages", {{{"role", "king"}, {"content", "x"}}}}}), "messages[0].role"},
      {"/api/chat", ask({{"options", {{"temperature", "hot"}}}}), "temperature"},
      {"/api/chat", json::array(), "expected an object"},
      {"/api/generate", {{"prompt", "x"}, {"suffix", "y"}}, "suffix"},
      {"/api/generate", {{"prompt", "x"}, {"template", "y"}}, "template"},
      {"/api/generate", {{"prompt", 5}}, "prompt"},
  };
  for (const auto& c : cases) {
    const Reply reply = post(c.path, c.body);
    EXPECT_EQ(reply.status, 400) << c.body;
    EXPECT_THAT(reply.json()["error"].get<std::string>(), HasSubstr(c.message)) << c.body;
  }
}

}  // namespace
}  // namespace sluice::server
