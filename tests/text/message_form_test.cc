// Templates that take messages in different forms: whatever a client's messages look like, their words
// arrive.
#include "text/message_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "text/chat.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

// Shows calls only beside no text at all, joins arguments to strings, and one system message, the last.
constexpr const char* kJoining = R"({%- set ns = namespace(system='') -%}
{%- for m in messages -%}{%- if m.role == 'system' -%}{%- set ns.system = m.content -%}{%- endif -%}{%- endfor -%}
{{ ns.system }}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{{ '<u>' + m.content }}{%- endif -%}
{%- if m.role == 'assistant' and m.content is none -%}
{%- for c in m.tool_calls -%}{{ '<call>' + c.type + ' ' + c.function.name + ' ' + c.function.arguments }}{%- endfor -%}
{%- elif m.role == 'assistant' -%}{{ '<a>' + m.content }}{%- endif -%}
{%- if m.role == 'tool' -%}{{ '<t>' + m.content }}{%- endif -%}
{%- endfor -%}{%- if add_generation_prompt -%}<a>{%- endif -%})";

// Walks arguments as an object.
constexpr const char* kWalking = R"({%- for m in messages -%}<{{ m.role }}>{{ m.content }}
{%- for c in m.tool_calls or [] -%}<call>{{ c.function.name }}{%- for k, v in c.function.arguments.items() -%}
{{ ' ' ~ k }}={{ v if v is string else v | tojson }}{%- endfor -%}{%- endfor -%}{%- endfor -%})";

// Takes both, and content only as parts.
constexpr const char* kParts = R"({%- for m in messages -%}<{{ m.role }}>{%- for p in m.content -%}
{%- if p.type == 'text' -%}{{ p.text }}{%- endif -%}{%- endfor -%}
{%- for c in m.tool_calls or [] -%}<call>{{ c.function.name }} {{ c.function.arguments if c.function.arguments is string
else c.function.arguments | tojson }}{%- endfor -%}{%- endfor -%})";

// Refuses system messages.
constexpr const char* kNoSystem = R"({%- for m in messages -%}{%- if m.role == 'system' -%}
{{ raise_exception('no system') }}{%- endif -%}<{{ m.role }}>{{ m.content }}{%- endfor -%})";

// Remembers across turns whether it has shown a call and a result, shows calls beside no text at all, joins
// arguments to strings and shows no tools: as DeepSeek's V3 and R1 do.
constexpr const char* kRemembering =
    R"({%- set ns = namespace(called=false, tool=false, first=true, system='') -%}
{%- for m in messages -%}{%- if m.role == 'system' -%}{%- set ns.system = m.content -%}{%- endif -%}{%- endfor -%}
{{ ns.system }}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{%- set ns.tool = false -%}{{ '<u>' + m.content }}{%- endif -%}
{%- if m.role == 'assistant' and m.content is none -%}{%- set ns.tool = false -%}
{%- for c in m.tool_calls -%}{%- if not ns.called -%}{{ '<a><｜tool▁calls▁begin｜>' }}{%- endif -%}
{{ '<｜tool▁call▁begin｜>' + c['type'] + '<｜tool▁sep｜>' + c['function']['name'] + '\n```json\n' + c['function']['arguments'] + '\n```<｜tool▁call▁end｜>' }}
{%- if ns.called -%}{{ '<｜tool▁calls▁end｜>' }}{%- endif -%}{%- set ns.called = true -%}{%- endfor -%}{%- endif -%}
{%- if m.role == 'assistant' and m.content is not none -%}{{ ('</outputs>' if ns.tool else '<a>') + m.content }}{%- set ns.tool = false -%}{%- endif -%}
{%- if m.role == 'tool' -%}{%- set ns.tool = true -%}{{ ('<outputs>' if ns.first else '') + '<o>' + m.content }}{%- set ns.first = false -%}{%- endif -%}
{%- endfor -%}{% if ns.tool %}</outputs>{% endif %}{% if add_generation_prompt and not ns.tool %}<a>{% endif %})";

// Wants user and assistant in turn, nobody silent and ids of nine letters: as Mistral's do.
constexpr const char* kStrict = R"({%- set ns = namespace(turn=0) -%}{%- for m in messages -%}
{%- if m.role == 'system' and not loop.first -%}{{ raise_exception('system is first') }}{%- endif -%}
{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) -%}
{%- if (m.role == 'user') != (ns.turn % 2 == 0) -%}{{ raise_exception('roles must alternate') }}{%- endif -%}
{%- set ns.turn = ns.turn + 1 -%}
{%- if m.content == '' -%}{{ raise_exception('nothing is said') }}{%- endif -%}{%- endif -%}
{%- if m.tool_calls -%}{%- for c in m.tool_calls -%}
{%- if c.id|length != 9 -%}{{ raise_exception('nine letters') }}{%- endif -%}
<call {{ c.id }}>{{ c.function.name }} {{ c.function.arguments | tojson }}{%- endfor -%}
{%- elif m.role == 'tool' -%}
{%- if m.tool_call_id|length != 9 -%}{{ raise_exception('nine letters') }}{%- endif -%}
<result {{ m.tool_call_id }}>{{ m.content }}
{%- else -%}<{{ m.role }}>{{ m.content }}{%- endif -%}{%- endfor -%})";

std::string prompt_of(const char* source, const Json& messages) {
  const ChatTemplate chat(source, "", "", ControlTokens());
  return chat.render({.messages = messages}).prompt.text;
}

Json call(const Json& content, const Json& arguments) {
  return {{"role", "assistant"},
          {"content", content},
          {"tool_calls", {{{"id", "c"}, {"function", {{"name", "f"}, {"arguments", arguments}}}}}}};
}

Json talk(const Json& content, const Json& arguments) {
  return Json::array({{{"role", "user"}, {"content", "hi"}},
                      call(content, arguments),
                      {{"role", "tool"}, {"tool_call_id", "c"}, {"content", "ok"}},
                      {{"role", "user"}, {"content", "more"}}});
}

TEST(MessageForm, ArgumentsAreTextOrObjects) {
  for (const Json& content : {Json(), Json("")}) {
    EXPECT_EQ(prompt_of(kJoining, talk(content, R"({"a":  1})")),
              "<u>hi<call>function f {\"a\":  1}<t>ok<u>more<a>");
    EXPECT_EQ(prompt_of(kJoining, talk(content, {{"a", 1}, {"b", "x"}})),
              "<u>hi<call>function f {\"a\": 1, \"b\": \"x\"}<t>ok<u>more<a>");
    EXPECT_EQ(prompt_of(kWalking, talk(content, R"({"a":  1, "b": "x"})")),
              "<user>hi<assistant><call>f a=1 b=x<tool>ok<user>more");
    EXPECT_EQ(prompt_of(kParts, talk(content, R"({"a":  1})")),
              "<user>hi<assistant><call>f {\"a\": 1}<tool>ok<user>more");
  }
}

TEST(MessageForm, NoWordsVanishBesideCalls) {
  EXPECT_EQ(prompt_of(kJoining, talk("I look.", "{}")), "<u>hi<a>I look.<call>function f {}<t>ok<u>more<a>");
  EXPECT_EQ(prompt_of(kWalking, talk("I look.", "{}")),
            "<user>hi<assistant>I look.<call>f<tool>ok<user>more");
}

TEST(MessageForm, NoWordsVanishOverManyTurns) {
  const auto calls = [](const Json& content, const std::vector<std::string>& words) {
    Json message = {{"role", "assistant"}, {"content", content}, {"tool_calls", Json::array()}};
    for (const std::string& word : words)
      message["tool_calls"].push_back(
          {{"id", word}, {"function", {{"name", "f"}, {"arguments", "{\"of\": \"" + word + "\"}"}}}});
    return message;
  };
  const auto say = [](const char* role, const char* text) { return Json{{"role", role}, {"content", text}}; };
  const Json messages = Json::array(
      {say("system", "RULES"), say("user", "ASKED"), calls("SAID", {"CALLED"}), say("tool", "CAME"),
       say("assistant", "ANSWERED"), say("user", "AGAIN"), calls(nullptr, {"SECOND"}), say("tool", "RESULT"),
       calls("", {"THIRD", "FOURTH"}), say("tool", "THREE"), say("tool", "FOUR"), say("user", "THANKS")});
  const Json tools =
      Json::parse(R"([{"type": "function", "function": {"name": "f", "description": "TOOL"}}])");
  const ChatTemplate chat(kRemembering, "", "", ControlTokens());
  const std::string prompt = chat.render({.messages = messages, .tools = tools}).prompt.text;
  size_t at = 0;
  for (const char* word : {"RULES", "TOOL", "ASKED", "SAID", "CALLED", "CAME", "ANSWERED", "AGAIN", "SECOND",
                           "RESULT", "THIRD", "FOURTH", "THREE", "FOUR", "THANKS"}) {
    const size_t place = prompt.find(word, at);
    ASSERT_NE(place, std::string::npos) << word << " in " << prompt;
    at = place;
  }
  EXPECT_THAT(prompt,
              HasSubstr("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>tool_call_name\n"
                        "```json\ntool_call_arguments\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"));
}

TEST(MessageForm, NoSystemMessageVanishes) {
  const Json messages = Json::array({{{"role", "system"}, {"content", "one"}},
                                     {{"role", "system"}, {"content", "two"}},
                                     {{"role", "user"}, {"content", "hi"}},
                                     {{"role", "system"}, {"content", "three"}}});
  EXPECT_EQ(prompt_of(kJoining, messages), "one\n\ntwo\n\nthree<u>hi<a>");
  EXPECT_EQ(prompt_of(kWalking, messages), "<system>one<system>two<user>hi<system>three");
  EXPECT_EQ(prompt_of(kNoSystem, messages), "<user>one\n\ntwo\n\nthree\n\nhi");
}

TEST(MessageForm, TurnsAlternateWhereTheTemplateWantsIt) {
  const auto say = [](const char* role, const char* text) { return Json{{"role", role}, {"content", text}}; };
  const auto user = [&](const char* text) { return say("user", text); };
  const auto assistant = [&](const char* text) { return say("assistant", text); };
  EXPECT_EQ(
      prompt_of(kStrict, {user("a"), user("b"), assistant("c"), assistant(""), assistant("d"), user("e")}),
      "<user>a\n\nb<assistant>c\n\nd<user>e");
  EXPECT_EQ(
      prompt_of(kStrict, {say("system", "s"), assistant("a"), user("b"), say("system", "t"), user("c")}),
      "<system>s\n\nt<user> <assistant>a<user>b\n\nc");
  EXPECT_EQ(prompt_of(kWalking, {user("a"), user("b")}), "<user>a<user>b");
  Json called = call("I look.", "{}");
  called["tool_calls"][0]["id"] = "012345678";
  const Json result = {{"role", "tool"}, {"tool_call_id", "012345678"}, {"content", "ok"}};
  EXPECT_EQ(prompt_of(kStrict, {user("a"), called, result, user("b")}),
            "<user>a<assistant>I look.<call 012345678>f {}<result 012345678>ok<user>b");
  EXPECT_EQ(prompt_of(kStrict, {user("a"), called, result, assistant("b"), user("c")}),
            "<user>a<assistant>I look.<call 012345678>f {}<result 012345678>ok<user> <assistant>b<user>c");
  called["content"] = nullptr;
  EXPECT_EQ(prompt_of(kStrict, {user("a"), called, result, assistant("b"), user("c")}),
            "<user>a<call 012345678>f {}<result 012345678>ok<assistant>b<user>c");
  // An answer that said nothing.
  EXPECT_EQ(prompt_of(kStrict, {user("a"), assistant(""), user("b")}), "<user>a<assistant> <user>b");
  EXPECT_EQ(prompt_of(kWalking, {user("a"), assistant(""), user("b")}), "<user>a<assistant><user>b");
  const ChatTemplate chat(kStrict, "", "", ControlTokens());
  EXPECT_EQ(chat.render({.messages = {user("a"), assistant("b"), assistant("c")}, .continue_last = true})
                .prompt.text,
            "<user>a<assistant>b\n\nc");
}

TEST(MessageForm, IdsHaveNineLettersWhereTheTemplateWantsIt) {
  const auto prompt = [](const std::string& id) {
    Json messages = talk("", "{}");
    messages[1]["tool_calls"][0]["id"] = messages[2]["tool_call_id"] = id;
    return prompt_of(kStrict, messages);
  };
  std::set<std::string> all;
  for (const char* id : {"call_0", "call_1", "toolu_0123456789abcdef", "", "ab-de-gh1"}) {
    const std::string text = prompt(id);
    const std::string shown = text.substr(text.find("<call ") + 6, 9);
    EXPECT_TRUE(std::ranges::all_of(shown, [](unsigned char c) { return std::isalnum(c); })) << text;
    EXPECT_THAT(text, HasSubstr("<result " + shown + ">")) << id;
    EXPECT_EQ(prompt(id), text);
    all.insert(shown);
  }
  EXPECT_EQ(all.size(), 5u);
}

TEST(MessageForm, BrokenArgumentsAreShownAsText) {
  for (const char* broken : {"{\"a\": ", "[1, 2]", "word", "{'a': 1}"}) {
    EXPECT_THAT(prompt_of(kJoining, talk("", broken)), HasSubstr(std::string("function f ") + broken));
    EXPECT_THAT(prompt_of(kWalking, talk("", broken)), HasSubstr(std::string("f arguments=") + broken));
    EXPECT_THAT(prompt_of(kParts, talk("", broken)), HasSubstr(std::string("<call>f ") + broken));
  }
  EXPECT_THAT(prompt_of(kWalking, talk("", Json::array({1, 2}))), HasSubstr("f arguments=[1,2]"));
  EXPECT_THAT(prompt_of(kJoining, talk("", 5)), HasSubstr("function f 5"));
  EXPECT_THAT(prompt_of(kWalking, talk("", R"({"n": 123456789012345678901234})")),
              HasSubstr("f n=123456789012345678901234"));
}

TEST(MessageForm, OldCallsAreCalls) {
  const Json messages = Json::array(
      {{{"role", "user"}, {"content", "hi"}},
       {{"role", "assistant"}, {"content", nullptr}, {"function_call", {{"name", "f"}, {"arguments", "{}"}}}},
       {{"role", "function"}, {"name", "f"}, {"content", "result"}}});
  EXPECT_EQ(prompt_of(kJoining, messages), "<u>hi<call>function f {}<t>result<a>");
}

// A hostile template must not hold up loading.
// As gpt-oss' does.
constexpr const char* kNaming = R"({%- set ns = namespace(name='') -%}{%- for m in messages -%}
{%- if m.role == 'tool' and not ns.name -%}{{ raise_exception('no call') }}
{%- elif m.role == 'tool' -%}<{{ ns.name }}>{{ m.content }}{%- set ns.name = '' -%}
{%- elif m.tool_calls -%}{%- set ns.name = m.tool_calls[0].function.name -%}
<call>{{ ns.name ~ ' ' ~ m.tool_calls[0].function.arguments|tojson }}
{%- else -%}<{{ m.role }}>{{ m.content }}{%- endif -%}{%- endfor -%})";

TEST(MessageForm, AResultWhoseCallIsCutOffIsShown) {
  const Json user = {{"role", "user"}, {"content", "hi"}};
  const Json result = {{"role", "tool"}, {"tool_call_id", "c"}, {"content", "ok"}};
  Json named = result;
  named["name"] = "look";
  EXPECT_EQ(prompt_of(kNaming, {result, user}), "<call>tool {}<tool>ok<user>hi");
  EXPECT_EQ(prompt_of(kNaming, {user, named}), "<user>hi<call>look {}<look>ok");
  EXPECT_EQ(prompt_of(kNaming, talk("", R"({"a": 1})")), "<user>hi<call>f {\"a\": 1}<f>ok<user>more");
  EXPECT_EQ(prompt_of(kWalking, {result, user}), "<tool>ok<user>hi");
}

// Goes over the tools, be there none, and over their schemas as far as it knows them: as NousResearch's do.
constexpr const char* kReading = R"({%- macro word(p) -%}
{%- if p.type == 'string' or p.type == 'integer' -%}{{ p.type }}
{%- elif p.type == 'array' -%}list[{{ word(p['items']) }}]
{%- elif p.type == 'object' -%}dict
{%- else -%}{{ word(p) }}{%- endif -%}{%- endmacro -%}
{%- for t in tools -%}<{{ t.function.name }}>{%- for name, p in t.function.parameters.properties|items -%}
{{ name ~ ':' ~ word(p) ~ ' ' ~ (p.description + '.' if p.description is defined else '') }}{%- endfor -%}
{{ ' needs ' + t.function.parameters.required|join(',') }}{%- endfor -%}
{%- for m in messages -%}<{{ m.role }}>{{ m.content }}{%- for c in m.tool_calls or [] -%}
<call>{{ c.function.name }}{%- endfor -%}{%- endfor -%})";

TEST(MessageForm, ATemplateThatGoesOverToolsTakesNone) {
  EXPECT_EQ(prompt_of(kReading, talk("I look.", "{}")),
            "<user>hi<assistant>I look.<call>f<tool>ok<user>more");
}

TEST(MessageForm, SchemasThatATemplateFailsWithAreShownInPlainWords) {
  const ChatTemplate chat(kReading, "", "", ControlTokens());
  const auto prompt = [&](const char* parameters) {
    const Json tools = Json::array(
        {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", Json::parse(parameters)}}}}});
    const Json hi = Json::array({{{"role", "user"}, {"content", "hi"}}});
    const ChatPrompt whole = chat.render({.messages = hi, .tools = tools});
    return whole.prompt.text + (whole.in_plain_words ? " *" : "");
  };
  const char* plain =
      R"({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}},
                          "required": ["a"]})";
  EXPECT_EQ(prompt(plain), "<f>a:list[string]  needs a<user>hi");
  // As schema generators write optional values, enums, references, lists of anything, and nothing at all.
  EXPECT_EQ(
      prompt(R"({"type": "object", "properties": {"a": {"type": ["null", "integer"], "description": "D"}},
                       "required": ["a"]})"),
      "<f>a:integer D. needs a<user>hi *");
  EXPECT_EQ(prompt(R"({"type": "object", "properties": {
                        "a": {"anyOf": [{"type": "null"}, {"type": "array", "items": true}], "description": "D"},
                        "b": {"enum": ["x"]}, "c": {"$ref": "#/$defs/c"}, "d": true, "e": {"properties": {}}},
                       "required": null})"),
            "<f>a:list[string] D.b:string c:string d:string e:dict  needs <user>hi *");
  EXPECT_EQ(prompt("{}"), "<f> needs <user>hi");
  // Depth costs nothing more than depth.
  std::string deep = R"({"type": "null"})";
  for (int i = 0; i < 100; ++i) deep = R"({"properties": {"a": )" + deep + "}}";
  EXPECT_THAT(prompt(deep.c_str()), HasSubstr("a:dict"));
}

TEST(MessageForm, ATemplateThatNeverEndsIsProbedQuickly) {
  const ChatTemplate chat("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
                          "", "", ControlTokens());
  EXPECT_EQ(chat.output_format().name, "plain");
}

TEST(Prefill, TheLastMessageIsNotClosed) {
  const char* closing = R"({%- for m in messages -%}<{{ m.role }}>
{%- if m.reasoning_content -%}{{ '<think>' + m.reasoning_content.strip() + '</think>' }}{%- endif -%}
{{ m.content.strip() }}<end>{%- endfor -%}{%- if add_generation_prompt -%}<assistant><think>{%- endif -%})";
  const ChatTemplate chat(closing, "", "", ControlTokens());
  const auto continued = [&](Json message) {
    message["role"] = "assistant";
    return chat.render(
        {.messages = Json::array({{{"role", "user"}, {"content", "hi"}}, message}), .continue_last = true});
  };
  EXPECT_EQ(continued({{"content", "Once upon "}}).prompt.text, "<user>hi<end><assistant>Once upon ");
  EXPECT_FALSE(continued({{"content", "Once"}}).starts_in_thinking);
  EXPECT_EQ(continued({{"content", "So"}, {"reasoning_content", "hm"}}).prompt.text,
            "<user>hi<end><assistant><think>hm</think>So");
  const ChatPrompt thinking = continued({{"content", ""}, {"reasoning_content", "let me"}});
  EXPECT_EQ(thinking.prompt.text, "<user>hi<end><assistant><think>let me");
  EXPECT_TRUE(thinking.starts_in_thinking);
  EXPECT_EQ(continued({{"content", "<think>let me"}}).prompt.text, "<user>hi<end><assistant><think>let me");
  EXPECT_EQ(continued({{"content", "continued-here"}}).prompt.text, "<user>hi<end><assistant>continued-here");
}

TEST(Prefill, ATemplateThatShowsNoReasoningGetsItAnyway) {
  const char* forgets = R"({%- for m in messages -%}<{{ m.role }}>{{ m.content }}<end>{%- endfor -%}
{%- if add_generation_prompt -%}<assistant><think>{%- endif -%}{# </think> #})";
  const ChatTemplate chat(forgets, "", "", ControlTokens());
  const Json messages =
      Json::array({{{"role", "user"}, {"content", "hi"}},
                   {{"role", "assistant"}, {"content", "So"}, {"reasoning_content", "hm"}}});
  EXPECT_EQ(chat.render({.messages = messages, .continue_last = true}).prompt.text,
            "<user>hi<end><assistant><think>hm</think>So");
}

TEST(Prefill, AClosedTagOfTheGenerationPromptIsOpenedForReasoning) {
  const char* closed = R"({%- for m in messages -%}<{{ m.role }}>{{ m.content }}<end>{%- endfor -%}
{%- if add_generation_prompt -%}<assistant></think>{%- endif -%})";
  const ChatTemplate chat(closed, "", "", ControlTokens());
  const auto continued = [&](const std::string& content, const std::string& reasoning) {
    const Json messages =
        Json::array({{{"role", "user"}, {"content", "hi"}},
                     {{"role", "assistant"}, {"content", content}, {"reasoning_content", reasoning}}});
    return chat.render({.messages = messages, .continue_last = true}).prompt.text;
  };
  EXPECT_EQ(continued("So", "hm"), "<user>hi<end><assistant><think>hm</think>So");
  EXPECT_EQ(continued("", "hm"), "<user>hi<end><assistant><think>hm");
}

TEST(Prefill, OnlyAnAnswerCanBeContinued) {
  const ChatTemplate chat(kWalking, "", "", ControlTokens());
  const Json user = {{"role", "user"}, {"content", "hi"}};
  EXPECT_THROW((void)chat.render({.messages = Json::array({user}), .continue_last = true}), Error);
  EXPECT_THROW((void)chat.render({.messages = Json::array({user, call("", "{}")}), .continue_last = true}),
               Error);
}

}  // namespace
}  // namespace sluice::text
