// Agents' conversations turn by turn: what a turn says again is found in the cache, and where it is not, the
// log says why. The sessions are real agents' (tests/agents), with long texts shortened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/kv_cache.h"
#include "server/client.h"
#include "server/parrot.h"

namespace sluice::server {
namespace {

using nlohmann::json;
using test::Client;
using testing::HasSubstr;

constexpr int64_t kPage = 64;

engine::EngineOptions large() {
  engine::EngineOptions options;
  options.context = 65536;
  options.max_sequences = 4;
  options.pages = 4096;
  return options;
}

/// What an answer says of its prompt.
struct Usage {
  int64_t prompt, cached;
};
Usage usage_of(const std::string& path, const json& answer) {
  const json& usage = answer.at("usage");
  if (path.starts_with("/v1/messages")) {
    const int64_t cached = usage.at("cache_read_input_tokens");
    return {usage.at("input_tokens").get<int64_t>() + cached, cached};
  }
  if (path.starts_with("/v1/responses"))
    return {usage.at("input_tokens"), usage.at("input_tokens_details").at("cached_tokens")};
  return {usage.at("prompt_tokens"), usage.at("prompt_tokens_details").at("cached_tokens")};
}

struct CacheLines {
  std::mutex mutex;
  std::vector<std::string> all;

  ServerOptions options() {
    ServerOptions out = test::quick_server();
    out.log = {LogLevel::Cache, [this](std::string_view line) {
                 const std::lock_guard lock(mutex);
                 all.emplace_back(line);
               }};
    return out;
  }
  /// The lines about the cache, once there are so many.
  std::vector<std::string> of_cache(size_t count) {
    std::vector<std::string> out;
    for (int i = 0; i < 1000 && out.size() < count; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      const std::lock_guard lock(mutex);
      out.clear();
      for (const std::string& line : all)
        if (line.starts_with("cache: ")) out.push_back(line);
    }
    return out;
  }
};

/// A recorded exchange, turn by turn.
class Exchange {
 public:
  explicit Exchange(const std::string& client) {
    std::ifstream file(std::string(SLUICE_SOURCE_DIR) + "/tests/server/agent_sessions/" + client + ".jsonl");
    nlohmann::ordered_json body;
    for (std::string line; std::getline(file, line);) {
      const auto row = nlohmann::ordered_json::parse(line);
      body = row.contains("body") ? row["body"] : body.patch(row["patch"]);
      nlohmann::ordered_json request = body;
      request["stream"] = false;
      request.erase("stream_options");
      turns_.push_back({row["path"], row["said"], request});
    }
  }
  struct Turn {
    std::string path, said;
    nlohmann::ordered_json request;

    /// The last of what is asked ends otherwise.
    Turn edited(const std::string& with) const {
      Turn out = *this;
      nlohmann::ordered_json* last =
          &(request.contains("input") ? out.request["input"] : out.request["messages"]).back();
      for (const char* name : {"content", "output", "content", "text"})
        if (last->is_object() && last->contains(name)) {
          last = &(*last)[name];
          if (last->is_array()) last = &last->back();
        }
      last->get_ref<std::string&>() += with;
      return out;
    }
  };
  const std::vector<Turn>& turns() const { return turns_; }

 private:
  std::vector<Turn> turns_;
};

class AgentSessions : public testing::TestWithParam<const char*> {};

// A turn reads what is new in it, what it renders otherwise than it was said, and the rest of a page. The
// third is where Claude Code writes `replace_all` into the call that it got without: there the second answer
// is read again.
TEST_P(AgentSessions, ATurnReadsWhatIsNew) {
  CacheLines lines;
  test::ParrotServer server(lines.options(), large(), "Qwen3-Coder");
  int64_t before = 0, said = 0;
  size_t turn = 0;
  const Exchange exchange(GetParam());
  for (const auto& [path, text, request] : exchange.turns()) {
    server.parrot.say(text);
    const test::Reply reply = Client(server.port()).ask("POST", path, request.dump());
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Usage usage = usage_of(path, reply.json());
    const std::string why = lines.of_cache(turn + 1).back();
    RecordProperty("turn " + std::to_string(turn), why);
    EXPECT_THAT(why,
                HasSubstr("cache: " + std::to_string(usage.cached) + " of " + std::to_string(usage.prompt)));
    if (turn > 0) {
      const bool adds = why.find("replace_all") != std::string::npos;
      EXPECT_GE(usage.cached, before + (adds ? 0 : said) - (kPage - 1)) << why;
      EXPECT_THAT(why, HasSubstr(adds ? "parts from an earlier one" : "goes on where an earlier one ended"));
    }
    before = usage.prompt;
    said = static_cast<int64_t>(text.size());
    ++turn;
  }
  EXPECT_EQ(turn, 3u);
}
INSTANTIATE_TEST_SUITE_P(Clients, AgentSessions,
                         testing::Values("claude-code", "codex", "opencode", "qwen-code"));

// The same of a hybrid, whose state cannot be cut: a turn reads what is new and an interval between snapshots
// at most, also when its last message was edited, several ask at once, or others have taken pages and slots
// meanwhile. Every state is that of the tokens before it.
class HybridSessions : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int64_t kInterval = engine::KvCache::kSnapshotPages * kPage;

  Usage ask(const Exchange::Turn& turn) {
    const test::Reply reply = Client(server_.port()).ask("POST", turn.path, turn.request.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    return usage_of(turn.path, reply.json());
  }
  static engine::EngineOptions options() {
    engine::EngineOptions options = large();
    options.pages = 1100;
    options.state_slots = engine::StatePool::wanted_slots(options.max_sequences);
    return options;
  }
  test::ParrotServer server_{test::quick_server(), options(), "Qwen3-Coder", true};
};

TEST_P(HybridSessions, ATurnReadsWhatIsNewAndAnIntervalAtMost) {
  const Exchange exchange(GetParam());
  ASSERT_EQ(exchange.turns().size(), 3u);
  int64_t known = 0;
  for (const Exchange::Turn& turn : exchange.turns()) {
    server_.parrot.say(turn.said);
    const Usage usage = ask(turn);
    EXPECT_GT(usage.cached, known - kInterval);
    // What the answer was is not said again by all of them; the question is.
    EXPECT_GE(usage.cached, known - kPage);
    known = usage.prompt;
  }
  // The last message is edited, twice, and then asked by four at once.
  const Exchange::Turn& last = exchange.turns().back();
  for (const char* with : {" Now.", " And say why."}) {
    const Usage usage = ask(last.edited(with));
    EXPECT_GT(usage.cached, known - kPage - kInterval) << with;
  }
  std::vector<std::thread> crowd;
  std::vector<Usage> usages(4);
  for (size_t i = 0; i < usages.size(); ++i)
    crowd.emplace_back([&, i] { usages[i] = ask(last.edited(std::string(i + 1, '!'))); });
  for (std::thread& one : crowd) one.join();
  for (const Usage& usage : usages) EXPECT_GT(usage.cached, known - kPage - kInterval);
  // Others' sessions take their share of pages and slots.
  for (const char* other : {"claude-code", "codex", "opencode", "qwen-code"}) {
    if (other == std::string(GetParam())) continue;
    const Exchange theirs(other);
    for (const Exchange::Turn& turn : theirs.turns()) {
      server_.parrot.say(turn.said);
      ask(turn);
    }
  }
  EXPECT_GT(ask(last.edited(" Again.")).cached, known - kPage - kInterval);
  EXPECT_GT(server_.parrot.right_states(), 100);
  EXPECT_EQ(server_.parrot.wrong_states(), 0);
}
INSTANTIATE_TEST_SUITE_P(Clients, HybridSessions,
                         testing::Values("claude-code", "codex", "opencode", "qwen-code"));

/// A conversation about a call, by chat completions.
json conversation() {
  return {{"messages",
           {{{"role", "system"}, {"content", std::string(300, 'x') + " It is 10:31."}},
            {{"role", "user"}, {"content", "Weather?"}}}},
          {"max_tokens", 500},
          {"tools",
           json::parse(R"([{"type": "function", "function": {"name": "weather", "description": "of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}])")}};
}

/// Of what a template family's model said in a turn, how many tokens the next turn reads again.
struct Family {
  const char* chat_template;
  std::string said;      ///< CITY stands for kCity
  bool sends_reasoning;  ///< the client gives it back
  int64_t again;         ///< tokens that the template renders otherwise, and those behind them
};

/// Nearly a page of bytes: that it is read again is seen.
constexpr const char* kCity = "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch";

void PrintTo(const Family& family, std::ostream* out) { *out << family.chat_template; }

/// The second: a client that gives arguments back with their keys in the order of their names.
class TemplateFamilies : public testing::TestWithParam<std::tuple<Family, bool>> {};

TEST_P(TemplateFamilies, ATurnReadsAgainWhatTheTemplateRendersOtherwise) {
  const auto& [family, sorts] = GetParam();
  CacheLines lines;
  test::ParrotServer server(lines.options(), large(), family.chat_template);
  json body = conversation();
  std::string said = family.said;
  said.replace(said.find("CITY"), 4, kCity);
  server.parrot.say(said);
  const json first = Client(server.port()).post("/v1/chat/completions", body).json();
  json message = first.at("choices").at(0).at("message");
  ASSERT_TRUE(message.contains("tool_calls")) << message;
  if (!family.sends_reasoning) message.erase("reasoning_content");
  if (sorts) {
    json& arguments = message["tool_calls"][0]["function"]["arguments"];
    const std::string before = arguments;
    arguments = json::parse(before).dump();
    EXPECT_NE(arguments, before) << "the model has them in another order";
  }
  body["messages"].push_back(message);
  body["messages"].push_back(
      {{"role", "tool"}, {"tool_call_id", message["tool_calls"][0]["id"]}, {"content", "sun"}});
  server.parrot.say("Sun.");
  const json second = Client(server.port()).post("/v1/chat/completions", body).json();
  const Usage before = usage_of("", first), usage = usage_of("", second);
  const int64_t again = before.prompt + static_cast<int64_t>(said.size()) - usage.cached;
  EXPECT_GE(again, family.again) << lines.of_cache(2).back();
  EXPECT_LT(again, family.again + kPage) << lines.of_cache(2).back();
}

const char* const kGlmCall =
    "<tool_call>weather<arg_key>days</arg_key><arg_value>3</arg_value><arg_key>city</"
    "arg_key><arg_value>CITY</arg_value></tool_call>";
const char* const kQwenCall =
    "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n<parameter=city>\nCITY\n</"
    "parameter>\n"
    "</function>\n</tool_call>";
const char* const kHermesCall =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"days\": 3, \"city\": \"CITY\"}}\n</tool_call>";

INSTANTIATE_TEST_SUITE_P(
    Families, TemplateFamilies,
    testing::Combine(
        testing::Values(
            Family{"GLM-4.7-Flash", std::string("I think.</think>I look.") + kGlmCall, true, 0},
            Family{"Qwen3-Coder", std::string("I look.\n\n") + kQwenCall, true, 0},
            Family{"Qwen-Qwen3-0.6B", std::string("<think>\nI think.\n</think>\n\nI look.\n") + kHermesCall,
                   true, 0},
            Family{"deepseek-ai-DeepSeek-V3.1",
                   "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"days\": 3, "
                   "\"city\": \"CITY\"}"
                   "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                   true, 0},
            Family{"moonshotai-Kimi-K2",
                   "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
                   "<|tool_call_argument_begin|>{\"days\": 3, \"city\": "
                   "\"CITY\"}<|tool_call_end|><|tool_calls_section_end|>",
                   true, 0},
            Family{
                "GLM-4.6",
                std::string("\n<think>I think.</think>\nI "
                            "look.\n<tool_call>weather\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
                            "<arg_key>city</arg_key>\n<arg_value>CITY</arg_value>\n</tool_call>"),
                true, 0}),
        testing::Bool()));

// What a client changes early in a prompt: the log names the token, and the words.
TEST(CacheLog, SaysFromWhichTokenOnAndWhy) {
  CacheLines lines;
  test::ParrotServer server(lines.options(), large(), "Qwen3-Coder");
  server.parrot.say("Sun.");
  const auto ask = [&](const json& body) {
    return usage_of("", Client(server.port()).post("/v1/chat/completions", body).json());
  };
  json body = conversation();
  ask(body);
  EXPECT_THAT(lines.of_cache(1)[0], HasSubstr("no earlier one begins like it"));
  // A clock in a header.
  std::string& header = body["messages"][0]["content"].get_ref<std::string&>();
  header.replace(header.find("10:31"), 5, "10:32");
  const Usage later = ask(body);
  const std::string clock = lines.of_cache(2)[1];
  EXPECT_THAT(clock, HasSubstr("parts from an earlier one at token "));
  EXPECT_THAT(clock, HasSubstr("10:31"));
  EXPECT_THAT(clock, HasSubstr("10:32"));
  EXPECT_LT(later.cached, 400);
  EXPECT_GE(later.cached, 256);
  // Another list of tools.
  body["tools"].push_back({{"type", "function"}, {"function", {{"name", "clock"}}}});
  ask(body);
  const std::string tools = lines.of_cache(3)[2];
  EXPECT_THAT(tools, HasSubstr(R"(that had "ction>\n</tools>)"));
  EXPECT_THAT(tools, HasSubstr(R"(this has "ction>\n<function>)"));
  // A system message in the middle leaves what is before it.
  body["messages"].push_back({{"role", "assistant"}, {"content", "Sun."}});
  body["messages"].push_back({{"role", "system"}, {"content", "5 minutes are left."}});
  body["messages"].push_back({{"role", "user"}, {"content", "And tomorrow?"}});
  ask(body);
  EXPECT_THAT(lines.of_cache(4)[3], HasSubstr("goes on where an earlier one ended"));
}

TEST(CacheLog, TellsNothingOfOtherKeys) {
  CacheLines lines;
  ServerOptions options = lines.options();
  options.api_keys = {"alice-key", "bob-key"};
  test::ParrotServer server(options, large(), "Qwen3-Coder");
  server.parrot.say("Sun.");
  for (const char* key : {"alice-key", "bob-key"})
    Client(server.port())
        .post("/v1/chat/completions", conversation(), std::string("Authorization: Bearer ") + key + "\r\n");
  EXPECT_THAT(lines.of_cache(2)[1], HasSubstr("no earlier one begins like it"));
}

}  // namespace
}  // namespace sluice::server
