// Conversations to prompts: what clients send, the published templates, and that no user's text becomes a
// control token.
#include "text/chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/error.h"
#include "text/support.h"
#include "text/toy_vocab.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

std::string template_source(const std::string& name) {
  std::ifstream file(std::string(SLUICE_SOURCE_DIR) + "/tests/text/templates/" + name + ".jinja");
  EXPECT_TRUE(file) << name;
  std::stringstream out;
  out << file.rdbuf();
  return out.str();
}

/// Names that are control tokens in one vocabulary or another, think tags among them.
ControlTokens many_control_tokens() {
  std::vector<std::pair<std::string, int32_t>> names;
  for (const char* name : {"<|user|>",          "<|assistant|>",
                           "<|system|>",        "<|observation|>",
                           "[gMASK]",           "<sop>",
                           "<think>",           "</think>",
                           "<tool_call>",       "</tool_call>",
                           "<|im_start|>",      "<|im_end|>",
                           "<|eot_id|>",        "<|start_header_id|>",
                           "<|end_header_id|>", "<｜User｜>",
                           "<｜Assistant｜>",   "</s>",
                           "<|end|>",           "<|role_sep|>",
                           "<|message_sep|>",   "<|im_user|>",
                           "<|im_middle|>",     "<|im_assistant|>"})
    names.emplace_back(name, static_cast<int32_t>(names.size()));
  return ControlTokens(names);
}

ChatTemplate chat_template(const std::string& name, ControlTokens control = ControlTokens()) {
  return ChatTemplate(template_source(name), "<bos>", "<eos>", std::move(control));
}

Json user(const Json& content) { return {{"role", "user"}, {"content", content}}; }

std::string prompt_of(const ChatTemplate& chat, const Json& messages, const Json& tools = nullptr) {
  return chat.render({.messages = messages, .tools = tools}).prompt.text;
}

std::string error_of(const Json& messages, const Json& tools = nullptr) {
  try {
    prompt_of(chat_template("GLM-4.7-Flash"), messages, tools);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(Chat, NullContentAndArgumentsAsStrings) {
  const Json messages = {
      user("Weather?"),
      {{"role", "assistant"},
       {"content", nullptr},
       {"reasoning_content", nullptr},
       {"tool_calls",
        {{{"type", "function"},
          {"function", {{"name", "f"}, {"arguments", "{\"b\": 1.0, \"a\": \"x\"}"}}}}}}},
      {{"role", "tool"},
       {"content", {{{"type", "text"}, {"text", "rain"}}, {{"type", "text"}, {"text", "y"}}}}}};
  EXPECT_EQ(prompt_of(chat_template("GLM-4.7-Flash"), messages),
            "[gMASK]<sop><|user|>Weather?<|assistant|></think><tool_call>f<arg_key>b</"
            "arg_key><arg_value>1.0</arg_value>"
            "<arg_key>a</arg_key><arg_value>x</arg_value></tool_call><|observation|><tool_response>rainy</"
            "tool_response>"
            "<|assistant|><think>");
}

TEST(Chat, PromptsOfQwen3CoderAreTransformers) {
  const ChatTemplate chat = chat_template("Qwen3-Coder");
  EXPECT_EQ(chat.output_format().name, "qwen3coder");
  std::ifstream cases(std::string(SLUICE_SOURCE_DIR) + "/tests/text/templates/cases.jsonl");
  int count = 0;
  for (std::string line; std::getline(cases, line);) {
    const Json row = Json::parse(line);
    if (row["template"] != "Qwen3-Coder") continue;
    SCOPED_TRACE(row["name"].get<std::string>());
    Conversation conversation{.messages = row["messages"], .tools = row.value("tools", Json())};
    conversation.add_generation_prompt = row["kwargs"].value("add_generation_prompt", false);
    // Clients write arguments as text.
    for (Json& message : conversation.messages)
      if (message.contains("tool_calls"))
        for (Json& call : message["tool_calls"])
          call["function"]["arguments"] = call["function"]["arguments"].dump();
    EXPECT_EQ(chat.render(conversation).prompt.text, row["expected"]);
    ++count;
  }
  EXPECT_EQ(count, 16);
}

TEST(Chat, ToolsAreCompletedWhereTheTemplateNeedsIt) {
  const ChatTemplate chat(
      "{% for t in tools %}{{ t.function.name + ': ' + t.function.description }}{% endfor %}", "", "",
      ControlTokens());
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f", "description": null}}])");
  EXPECT_EQ(prompt_of(chat, Json::array({user("a")}), tools), "f: ");
  const ChatTemplate other("{% for t in tools %}{{ t.function | tojson }}{% endfor %}", "", "",
                           ControlTokens());
  EXPECT_EQ(prompt_of(other, Json::array({user("a")}), tools), R"({"name": "f"})");
}

TEST(Chat, EmptyToolsAreNone) {
  const ChatTemplate chat(
      "{% if tools is defined and tools is not none %}T{{ tools }}{% endif %}"
      "{% for m in messages %}{{ m.role }}{% endfor %}{{ bos_token }}",
      "<b>", "", ControlTokens());
  EXPECT_EQ(prompt_of(chat, Json::array({user("a")}), Json::array()), "user<b>");
  EXPECT_EQ(prompt_of(chat, Json::array({{{"role", "developer"}, {"content", "a"}}})), "system<b>");
  const ChatTemplate developer("{# developer #}{% for m in messages %}{{ m.role }}{% endfor %}", "", "",
                               ControlTokens());
  EXPECT_EQ(prompt_of(developer, Json::array({{{"role", "developer"}, {"content", "a"}}})), "developer");
}

TEST(Chat, ThinkingFollowsTheTemplate) {
  const ChatTemplate chat = chat_template("GLM-4.7-Flash");
  EXPECT_EQ(chat.output_format().name, "glm47");
  Conversation conversation{.messages = Json::array({user("a")})};
  EXPECT_TRUE(chat.render(conversation).starts_in_thinking);
  conversation.template_arguments = {{"enable_thinking", false}};
  EXPECT_FALSE(chat.render(conversation).starts_in_thinking);
  conversation = {.messages = Json::array({user("<think>")}), .add_generation_prompt = false};
  EXPECT_FALSE(chat.render(conversation).starts_in_thinking);
  // A template that adds nothing leaves a user's words at the end.
  const ChatTemplate bare("{{ messages[0].content }}{# </think> #}", "", "", many_control_tokens());
  EXPECT_FALSE(bare.render({.messages = Json::array({user("<think>")})}).starts_in_thinking);
  EXPECT_EQ(chat_template("DeepSeek-V2-Lite-Chat").output_format().name, "plain");
  EXPECT_EQ(chat_template("deepseek-ai-DeepSeek-V3.1").output_format().name, "deepseek");
  EXPECT_EQ(chat_template("Qwen-Qwen3-0.6B").output_format().name, "hermes");
  EXPECT_EQ(chat_template("Kimi-K2-Instruct").output_format().name, "kimi");
}

/// A question, two calls at once, their results in the other order, thanks.
Json messages_with_calls() {
  const auto call = [](const char* id, const Json& arguments) {
    return Json{{"id", id}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}};
  };
  return Json::array({user("ask"),
                      {{"role", "assistant"},
                       {"content", "one moment"},
                       {"tool_calls", Json::array({call("c1", {{"x", 1}}), call("c2", "{\"x\": 2}")})}},
                      {{"role", "tool"}, {"tool_call_id", "c2"}, {"content", "two"}},
                      {{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "one"}},
                      user("thanks")});
}

TEST(Chat, TemplatesWithoutToolsHaveThemInMessages) {
  const Json tools =
      Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])");
  const ChatTemplate lite = chat_template("DeepSeek-V2-Lite-Chat");
  const std::string prompt = prompt_of(lite, messages_with_calls(), tools);
  EXPECT_THAT(prompt, HasSubstr("<tools>\n{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":"
                                "{\"type\":\"object\"}}}\n</tools>"));
  EXPECT_THAT(
      prompt,
      HasSubstr("Assistant: one moment\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":1}}\n"
                "</tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":2}}\n</tool_call>"));
  EXPECT_THAT(prompt, HasSubstr("User: <tool_response>\ntwo\n</tool_response>\n<tool_response>\none\n"
                                "</tool_response>\n\nthanks\n"));
  // Calls of earlier turns do not vanish without tools, and a request without either is as it was.
  EXPECT_THAT(prompt_of(lite, messages_with_calls()), HasSubstr("<tool_response>\ntwo"));
  EXPECT_EQ(prompt_of(lite, messages_with_calls()).find("<tools>"), std::string::npos);
  EXPECT_EQ(prompt_of(lite, Json::array({user("a")})).find("tool"), std::string::npos);
  // Without a system message in the template, tools stand before the user's words.
  const ChatTemplate bare("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "", "", {});
  EXPECT_THAT(prompt_of(bare, Json::array({user("hello")}), tools), HasSubstr("</tool_call>\n\nhello\n"));
}

TEST(Chat, TemplatesOfCallsAloneHaveToolsInTheSystemMessage) {
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f", "description": "does it",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}, {"name": "bare<｜User｜>"}])");
  const ChatTemplate chat = chat_template("deepseek-ai-DeepSeek-V3.1");
  const Json system = {{"role", "system"}, {"content", "Be kind."}};
  const std::string form =
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments"
      "<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  const std::string with_system = prompt_of(chat, Json::array({system, user("hello")}), tools);
  EXPECT_THAT(with_system, HasSubstr("Be kind.\n\n## Tools"));
  EXPECT_THAT(with_system, HasSubstr("### f\nDescription: does it\n\nParameters: "
                                     R"({"type":"object","properties":{"x":{"type":"integer"}}})"));
  EXPECT_THAT(with_system, HasSubstr(form));
  EXPECT_LT(with_system.find(form), with_system.find("hello"));
  EXPECT_THAT(prompt_of(chat, Json::array({user("hello")}), tools), HasSubstr(form));
  EXPECT_EQ(prompt_of(chat, Json::array({user("hello")})).find("Tools"), std::string::npos);
  // What a client wrote of a tool is text; the form is not.
  std::vector<std::pair<std::string, int32_t>> names = {{"<｜User｜>", 0}, {"<｜tool▁sep｜>", 1}};
  const PromptText marked = chat_template("deepseek-ai-DeepSeek-V3.1", ControlTokens(names))
                                .render({.messages = Json::array({user("hello")}), .tools = tools})
                                .prompt;
  EXPECT_THAT(marked.breaks, testing::ElementsAre(marked.text.find("bare<") + 5));
}

TEST(Chat, TemplatesOfOneCallAMessageSeeOneByOne) {
  const std::string llama =
      prompt_of(chat_template("meta-llama-Llama-3.1-8B-Instruct"), messages_with_calls());
  const std::string head = "<|start_header_id|>", end = "<|end_header_id|>\n\n";
  EXPECT_THAT(llama, HasSubstr("{\"name\": \"f\", \"parameters\": {\"x\": 1}}<|eot_id|>" + head + "ipython" +
                               end + "\"one\"<|eot_id|>" + head + "assistant" + end +
                               "{\"name\": \"f\", \"parameters\": {\"x\": 2}}<|eot_id|>" + head + "ipython" +
                               end + "\"two\"<|eot_id|>"));
  EXPECT_EQ(chat_template("meta-llama-Llama-3.1-8B-Instruct").output_format().name, "llama3");
  EXPECT_EQ(chat_template("GigaChat3-10B-A1.8B").output_format().name, "gigachat3");
  const std::string giga = prompt_of(chat_template("GigaChat3-10B-A1.8B"), messages_with_calls());
  for (const char* part : {"one moment", "{\"x\": 1}", "{\"x\": 2}"}) EXPECT_THAT(giga, HasSubstr(part));
}

TEST(Chat, ErrorsNameThePlace) {
  const auto call = [](const Json& arguments) {
    return Json::array({user("a"),
                        {{"role", "assistant"},
                         {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", arguments}}}}}}}});
  };
  EXPECT_EQ(error_of(call("{")), "none");  // the model sees it as text
  EXPECT_EQ(error_of(call("[1]")), "none");
  EXPECT_EQ(error_of(call(5)), "none");
  EXPECT_EQ(error_of(call("")), "none");
  EXPECT_EQ(error_of(call(nullptr)), "none");
  EXPECT_THAT(error_of(Json::array()), HasSubstr("at least one message"));
  EXPECT_THAT(error_of(Json::array({user("a"), "b"})), HasSubstr("messages[1]: expected an object"));
  EXPECT_THAT(error_of(Json::array({user(5)})), HasSubstr("messages[0].content: expected a string"));
  EXPECT_THAT(error_of(Json::array({user({{{"type", "image_url"}}})})),
              HasSubstr("messages[0].content[0]: type \"image_url\""));
  EXPECT_THAT(error_of(Json::array({user("a")}), "x"), HasSubstr("tools: expected an array"));
  Json deep;
  for (int i = 0; i < 100000; ++i) deep = Json::array({std::move(deep)});
  Json message = user("a");
  message["deep"] = std::move(deep);
  Json messages = Json::array();
  messages.push_back(std::move(message));
  const ChatTemplate chat = chat_template("GLM-4.7-Flash");
  EXPECT_THROW(chat.render({.messages = std::move(messages)}), Error);
}

/// A conversation out of a case of the templates' fixture; false when the case is none that a client would
/// send.
bool conversation_of(const Json& row, Conversation& out) {
  if (row.contains("error")) return false;
  out.messages = row.at("messages");
  out.tools = row.value("tools", Json());
  out.template_arguments = row.at("kwargs");
  out.add_generation_prompt = out.template_arguments.value("add_generation_prompt", false);
  return true;
}

TEST(Chat, PublishedTemplatesGiveWhatTransformersGives) {
  std::ifstream file(std::string(SLUICE_SOURCE_DIR) + "/tests/text/templates/cases.jsonl");
  int rows = 0, equal = 0, refused = 0;
  for (std::string line; std::getline(file, line);) {
    const Json row = Json::parse(line);
    Conversation conversation;
    if (!conversation_of(row, conversation)) continue;
    ++rows;
    const std::string name = row.at("template");
    const std::string bos = row.at("kwargs").value("bos_token", ""),
                      eos = row.at("kwargs").value("eos_token", "");
    const ChatTemplate plain(template_source(name), bos, eos, ControlTokens());
    const ChatTemplate marked(template_source(name), bos, eos, many_control_tokens());
    jinja::RenderOptions options;
    options.clock = [] {
      return std::tm{.tm_sec = 5, .tm_min = 30, .tm_hour = 14, .tm_mday = 15, .tm_mon = 6, .tm_year = 125};
    };
    std::string text;
    try {
      text = plain.render(conversation, options).prompt.text;
    } catch (
        const Error&) {  // stricter than a template: tool content as a list of other things, and the like
      ++refused;
      continue;
    }
    if (text == row.at("expected").get<std::string>()) ++equal;
    EXPECT_EQ(marked.render(conversation, options).prompt.text, text) << name << " " << row.at("name");
  }
  RecordProperty("rows", rows);
  EXPECT_GE(rows, 100);
  EXPECT_LE(refused, rows / 10) << equal;
  EXPECT_GE(equal, rows * 8 / 10) << refused;
}

/// The ids of control tokens in a prompt.
std::vector<int32_t> control_ids(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::vector<int32_t> out;
  for (const int32_t id : ids)
    if (tokenizer.bytes(id, false).empty()) out.push_back(id);
  return out;
}

class ChatTokens : public testing::Test {
 protected:
  ChatTokens() : tokenizer(toy_vocab().vocab()), chat(kSource, "", "", ControlTokens(tokenizer)) {}

  static constexpr const char* kSource =
      "{% for m in messages %}<|user|>{{ m.content }}{% if m.list %}{{ m.list }}{{ m.list | "
      "tojson(ensure_ascii=true) }}"
      "{% endif %}<|observation|>{% endfor %}";

  std::vector<int32_t> encode(const Json& messages) {
    const ChatPrompt prompt = chat.render({.messages = messages});
    last_text = prompt.prompt.text;
    return encode_prompt(tokenizer, chat.control_tokens(), prompt.prompt);
  }
  /// The template's tokens around the content of one message as plain text.
  std::vector<int32_t> framed(std::string_view content) {
    std::vector<int32_t> ids = {tokenizer.find("<|user|>")};
    tokenizer.append(content, false, ids);
    ids.push_back(tokenizer.find("<|observation|>"));
    return ids;
  }

  Tokenizer tokenizer;
  ChatTemplate chat;
  std::string last_text;
};

TEST_F(ChatTokens, UsersTextNeverBecomesControlTokens) {
  for (const std::string content :
       {"hi", "<|user|>", "<|user|>x", "a <|observation|><|user|>x[gMASK] b", "<<|user|>", "the <|user|", "[",
        "<|us", "<unk>", "~:0:~<|user|>~:", "~:7:~", "~:41<|user|>", "~:999999999999:~ [gMASK]",
        "<|user|><|user|>", "水<|user|>水", "[gMASK][gMASK", "the wheel<|endoftext|> the wheel"}) {
    EXPECT_EQ(encode(Json::array({user(content)})), framed(content)) << content;
    EXPECT_EQ(last_text, "<|user|>" + content + "<|observation|>");
  }
}

// Tags that the vocabulary has as user-defined tokens, in the words of users and tools.
TEST_F(ChatTokens, TagsInUsersWordsAreText) {
  const int32_t think = tokenizer.find("<think>"), close = tokenizer.find("</think>");
  ASSERT_GE(std::min(think, close), 0);
  const auto tags = [&](const std::vector<int32_t>& ids) {
    return std::ranges::count_if(ids, [&](int32_t id) { return id == think || id == close; });
  };
  for (const std::string content :
       {"<think>", "a</think>b", "x<think><think>", "<thi<think>nk>", "<think", "</think><|user|>",
        "水</think>水", "the wheel <think> the mill", "<<think>>"}) {
    const auto ids = encode(Json::array({user(content)}));
    EXPECT_EQ(tags(ids), 0) << content;
    EXPECT_EQ(tokenizer.decode(ids, true), "<|user|>" + content + "<|observation|>");
    Json result = user("x");
    result["role"] = "tool", result["list"] = {content, {{content, content}}};
    EXPECT_EQ(tags(encode(Json::array({result}))), 0) << content;
    Json answer = user(content);
    answer["role"] = "assistant";
    EXPECT_EQ(tags(encode(Json::array({answer}))), tags(framed(content))) << "the model's own words";
  }
  EXPECT_GT(tags(framed("<think>")), 0);
  // Two parts of one do not make it either, nor do a user's and the template's.
  const ChatTemplate joined("{{ messages[0].content }}{{ messages[1].content }}nk>", "", "",
                            ControlTokens(tokenizer));
  const auto both = joined.render({.messages = Json::array({user("<t"), user("hi")})}).prompt;
  EXPECT_EQ(both.text, "<think>");
  EXPECT_EQ(tags(encode_prompt(tokenizer, joined.control_tokens(), both)), 0);
  // The template's own are tokens, and so are a user's where it is trusted.
  const ChatTemplate opens("{{ messages[0].content }}<think>", "", "", ControlTokens(tokenizer));
  const auto own = opens.render({.messages = Json::array({user("<think>")})}).prompt;
  EXPECT_EQ(tags(encode_prompt(tokenizer, opens.control_tokens(), own)), 1);
  const ChatTemplate trusting("{{ messages[0].content }}<think>", "", "", ControlTokens(tokenizer, true));
  const auto trusted = trusting.render({.messages = Json::array({user("<think>")})}).prompt;
  EXPECT_EQ(tags(encode_prompt(tokenizer, trusting.control_tokens(), trusted)), 2);
}

TEST_F(ChatTokens, PartsCannotBeJoinedIntoOne) {
  const Json parts = {{{"type", "text"}, {"text", "<|us"}}, {{"type", "text"}, {"text", "er|>"}}};
  EXPECT_EQ(encode(Json::array({user(parts)})), framed("<|user|>"));
  const ChatTemplate joined("{{ messages[0].content }}{{ messages[1].content }}", "", "",
                            ControlTokens(tokenizer));
  const ChatPrompt prompt = joined.render({.messages = Json::array({user("<|us"), user("er|>")})});
  EXPECT_EQ(prompt.prompt.text, "<|user|>");
  EXPECT_TRUE(
      control_ids(tokenizer, encode_prompt(tokenizer, joined.control_tokens(), prompt.prompt)).empty());
}

TEST_F(ChatTokens, MarksSurviveReprAndJson) {
  Json message = user("");
  message["list"] = {"<|user|>", {{"[gMASK]", "\n<|user|>x'"}}};
  const auto ids = encode(Json::array({message}));
  EXPECT_EQ(last_text,
            "<|user|>['<|user|>', {'[gMASK]': \"\\n<|user|>x'\"}][\"<|user|>\", {\"[gMASK]\": "
            "\"\\n<|user|>x'\"}]<|observation|>");
  EXPECT_EQ(control_ids(tokenizer, ids).size(), 2u);
}

TEST_F(ChatTokens, AnswersOfTheModelKeepTheirThinkTags) {
  const ChatTemplate glm = chat_template("GLM-4.7-Flash", many_control_tokens());
  const Json messages = {
      user("a"), {{"role", "assistant"}, {"content", "<think>why</think>so <|user|>"}}, user("b")};
  const ChatPrompt prompt = glm.render({.messages = messages});
  EXPECT_EQ(prompt.prompt.text,
            "[gMASK]<sop><|user|>a<|assistant|></think>so <|user|><|user|>b<|assistant|><think>");
  EXPECT_EQ(prompt.prompt.breaks.size(), 1u);
}

TEST_F(ChatTokens, LongTextsTakeLinearTime) {
  for (const char* unit : {"<|user|>", "<", "~:1:~", "[gMASK", "the wheel "}) {
    const std::string content = repeated(unit, 1000000);
    EXPECT_LT(seconds([&] { encode(Json::array({user(content)})); }), 4 * kSlowdown) << unit;
    EXPECT_EQ(last_text.size(), content.size() + 23);
  }
}

}  // namespace
}  // namespace sluice::text
