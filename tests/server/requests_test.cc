// What clients send: encodings, paths, odd elements of conversations, fields with a meaning. One odd element
// never ends a conversation, and nothing that means something is passed over.
#include <brotli/encode.h>
#include <gmock/gmock.h>
#include <zlib.h>
#include <zstd.h>

#include "server/api_fixture.h"
#include "server/body.h"

namespace sluice::server {
namespace {

using nlohmann::json;
using test::Api;
using test::Client;
using test::kTools;
using test::Reply;
using testing::HasSubstr;
using testing::Not;

std::string zlib_packed(const std::string& text, int window_bits) {
  z_stream stream{};
  EXPECT_EQ(::deflateInit2(&stream, 6, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(::deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(::deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(out.size() - stream.avail_out);
  ::deflateEnd(&stream);
  return out;
}
std::string gzip(const std::string& text) { return zlib_packed(text, 15 + 16); }

std::string zstd(const std::string& text) {
  std::string out(::ZSTD_compressBound(text.size()), '\0');
  out.resize(::ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string brotli(const std::string& text) {
  size_t size = ::BrotliEncoderMaxCompressedSize(text.size()) + 64;
  std::string out(size, '\0');
  EXPECT_EQ(::BrotliEncoderCompress(5, 22, BROTLI_MODE_TEXT, text.size(),
                                    reinterpret_cast<const uint8_t*>(text.data()), &size,
                                    reinterpret_cast<uint8_t*>(out.data())),
            BROTLI_TRUE);
  out.resize(size);
  return out;
}

int status_of(const std::string& body, const std::string& encodings, size_t limit = 1 << 20) {
  try {
    decode_body(body, encodings, limit);
    return 200;
  } catch (const ApiError& error) {
    return error.status;
  }
}

TEST(Bodies, AreDecoded) {
  std::string text;
  for (int i = 0; i < 40000; ++i) text += std::to_string(i * 7919);
  EXPECT_EQ(decode_body(gzip(text), "gzip", 1 << 20), text);
  EXPECT_EQ(decode_body(gzip("one") + gzip("two"), "X-GZIP", 1 << 20), "onetwo");
  EXPECT_EQ(decode_body(zlib_packed(text, 15), "deflate", 1 << 20), text);
  EXPECT_EQ(decode_body(zlib_packed(text, -15), "deflate", 1 << 20), text);
  EXPECT_EQ(decode_body(zstd(text), "zstd", 1 << 20), text);
  EXPECT_EQ(decode_body(zstd(text) + zstd("more"), "zstd", 1 << 20), text + "more");
  EXPECT_EQ(decode_body(brotli(text), "br", 1 << 20), text);
  EXPECT_EQ(decode_body(zstd(gzip(text)), " gzip , identity, zstd", 1 << 20), text);
  EXPECT_EQ(decode_body("plain", "identity", 1 << 20), "plain");
}

TEST(Bodies, HaveTheirLimits) {
  const std::string much(4 << 20, 'a');
  for (const auto& [body, name] :
       {std::pair(gzip(much), "gzip"), std::pair(zstd(much), "zstd"), std::pair(brotli(much), "br"),
        std::pair(zlib_packed(much, 15), "deflate"), std::pair(gzip(gzip(much)), "gzip, gzip")}) {
    EXPECT_EQ(status_of(body, name), 413) << name;
    EXPECT_EQ(status_of(body, name, 4 << 20), 200) << name;
    EXPECT_EQ(status_of(body.substr(0, body.size() - 1), name, 8 << 20), 400) << name << " cut";
    EXPECT_EQ(status_of("", name), 400) << name << " empty";
    EXPECT_EQ(status_of("{\"a\": 1}", name), 400) << name << " not encoded";
  }
  EXPECT_EQ(status_of("x", "compress"), 415);
  EXPECT_EQ(status_of("x", "gzip, gzip, gzip, gzip"), 415);
}

TEST_F(Api, EncodedBodiesAreRead) {
  const std::string body = chat().dump();
  say("</think>x");
  EXPECT_EQ(Client(server_->port())
                .ask("POST", "/v1/chat/completions", zstd(body), "Content-Encoding: zstd\r\n")
                .status,
            200);
  const Reply reply =
      Client(server_->port()).ask("POST", "/v1/messages", body, "Content-Encoding: x-unknown\r\n");
  EXPECT_EQ(reply.status, 415);
  EXPECT_THAT(reply.body, HasSubstr("x-unknown"));
}

TEST_F(Api, PathsWithSlashesTooManyAndWithoutV1) {
  say("</think>x");
  for (const char* path : {"/v1//chat/completions", "//v1/chat/completions", "/v1/chat/completions/",
                           "/chat/completions", "/chat/completions//"})
    EXPECT_EQ(post(path, chat()).status, 200) << path;
  EXPECT_EQ(post("/completions", {{"prompt", "x"}, {"max_tokens", 1}}).status, 200);
  EXPECT_EQ(post("/responses", {{"input", "x"}}).status, 200);
  EXPECT_EQ(
      post("/messages", {{"max_tokens", 1}, {"messages", {{{"role", "user"}, {"content", "x"}}}}}).status,
      200);
  EXPECT_TRUE(post("/messages", json::object()).json().contains("type")) << "Anthropic's shape";
  EXPECT_TRUE(get("/v1/models/").json().contains("data"));
  EXPECT_EQ(get("/models/parrot").json()["id"], "parrot");
  for (const char* path : {"/", "/health", "/v1/models", "/models/parrot"})
    EXPECT_EQ(Client(server_->port()).ask("HEAD", path).status, 200) << path;
  EXPECT_EQ(Client(server_->port()).ask("HEAD", "/v1/chat/completions").status, 405);
  for (const char* path : {"/api/push", "/api/nothing"}) {
    EXPECT_EQ(get(path).status, 404);
    EXPECT_TRUE(get(path).json()["error"].is_string()) << path;
  }
}

TEST_F(Api, ToolsThatCannotRunHereAreLeftAside) {
  say("</think>x");
  const json parameters = json::parse(R"({"type":"object","properties":{"a":{"type":"string"}}})");
  const json function = {{"type", "function"}, {"name", "f"}, {"parameters", parameters}};
  for (const json& tool : {json{{"type", "web_search"}}, json{{"type", "custom"}, {"name", "apply_patch"}},
                           json{{"type", "namespace"}, {"name", "mcp"}, {"tools", {function}}},
                           json{{"type", "local_shell"}}, json{{"type", "tomorrows_tool"}}})
    EXPECT_EQ(post("/v1/responses", {{"input", "x"}, {"tools", {function, tool}}}).status, 200) << tool;
  for (const json& tool : {json{{"type", "bash_20250124"}, {"name", "bash"}},
                           json{{"type", "memory_20250818"}, {"name", "memory"}},
                           json{{"type", "web_search_20250305"}, {"name", "web_search"}}})
    EXPECT_EQ(
        post("/v1/messages",
             {{"max_tokens", 3}, {"messages", {{{"role", "user"}, {"content", "x"}}}}, {"tools", {tool}}})
            .status,
        200)
        << tool;
  EXPECT_EQ(post("/v1/chat/completions", chat({{"tools", {function, {{"type", "retrieval"}}}}})).status, 200);
  EXPECT_EQ(post("/v1/responses",
                 {{"input", "x"},
                  {"tools", {function}},
                  {"tool_choice", {{"type", "allowed_tools"}, {"mode", "auto"}, {"tools", {function}}}}})
                .status,
            200);
}

TEST_F(Api, CallsGoBackAsTheKindsOfToolsThatTheyWere) {
  const json custom = {{"type", "custom"}, {"name", "apply_patch"}, {"description", "d"}};
  const json space = {
      {"type", "namespace"},
      {"name", "mcp"},
      {"tools", {{{"type", "function"}, {"name", "f"}, {"parameters", {{"type", "object"}}}}}}};
  say("</think><tool_call>apply_patch<arg_key>input</arg_key><arg_value>*** "
      "Begin\n+\"x\"</arg_value></tool_call>"
      "<tool_call>mcp__f</tool_call>"
      "<tool_call>local_shell<arg_key>command</arg_key><arg_value>[\"ls\"]</arg_value></tool_call>");
  const json output =
      post("/v1/responses", {{"input", "x"}, {"tools", {custom, space, {{"type", "local_shell"}}}}})
          .json()["output"];
  ASSERT_EQ(output.size(), 3u) << output;
  EXPECT_EQ(output[0]["type"], "custom_tool_call");
  EXPECT_EQ(output[0]["name"], "apply_patch");
  EXPECT_EQ(output[0]["input"], "*** Begin\n+\"x\"");
  EXPECT_EQ(output[1]["type"], "function_call");
  EXPECT_EQ(output[1]["name"], "f");
  EXPECT_EQ(output[1]["namespace"], "mcp");
  EXPECT_EQ(output[2]["type"], "local_shell_call");
  EXPECT_EQ(output[2]["action"]["command"], json({"ls"}));

  // And they come back so, with their results.
  json input = output;
  input.insert(input.begin(), json{{"role", "user"}, {"content", "x"}});
  for (const char* type : {"custom_tool_call_output", "function_call_output", "local_shell_call_output"})
    input.push_back({{"type", type}, {"call_id", output[input.size() - 4]["call_id"]}, {"output", "ok"}});
  input.push_back({{"type", "web_search_call"}, {"id", "w"}, {"status", "completed"}});
  say("</think>x");
  EXPECT_EQ(post("/v1/responses", {{"input", input}, {"tools", {custom, space}}}).status, 200);
}

/// A call of apply_patch, whose input has all that JSON text escapes, and what comes before and after.
const std::string kPatch = "*** Begin\n+\"x\\n\" \xC3\xA9\t\xF0\x9F\x99\x82";
const std::string kPatchCall = "</think><tool_call>apply_patch<arg_key>input</arg_key><arg_value>" + kPatch;
const std::string kCallEnd = "</arg_value></tool_call>";

TEST_F(Api, CustomCallsStreamTheirInput) {
  const json tools = {{{"type", "custom"}, {"name", "apply_patch"}}, {{"type", "local_shell"}}};
  const std::string shell =
      "<tool_call>local_shell<arg_key>command</arg_key><arg_value>[\"ls\", 5]</arg_value>"
      "<arg_key>type</arg_key><arg_value>x</arg_value><arg_key>timeout_ms</arg_key><arg_value>soon</"
      "arg_value>"
      "</tool_call>";
  for (const bool cut : {false, true}) {
    say(cut ? kPatchCall : kPatchCall + kCallEnd + shell);
    json body = {{"input", "x"}, {"tools", tools}, {"stream", true}};
    if (cut) body["max_output_tokens"] = kPatchCall.size();
    const Reply reply = post("/v1/responses", body);
    ASSERT_EQ(reply.status, 200);
    std::map<std::string, int> count;
    std::string deltas, done;
    json items = json::array(), last;
    for (const std::string& text : reply.events()) {
      const json event = json::parse(text.substr(text.find('|') + 1));
      const std::string type = event["type"];
      ++count[type];
      if (type == "response.custom_tool_call_input.delta") deltas += event["delta"];
      if (type == "response.custom_tool_call_input.done") done = event["input"];
      if (type == "response.output_item.done") items.push_back(event["item"]);
      last = event;
    }
    EXPECT_EQ(deltas, kPatch);
    EXPECT_EQ(done, kPatch);
    EXPECT_GT(count["response.custom_tool_call_input.delta"], 10) << "it comes as it is written";
    EXPECT_EQ(count["response.function_call_arguments.delta"], 0);
    ASSERT_EQ(items.size(), cut ? 1u : 2u);
    EXPECT_EQ(items[0]["type"], "custom_tool_call");
    EXPECT_EQ(items[0]["input"], kPatch);
    EXPECT_EQ(items[0]["status"], cut ? "incomplete" : "completed");
    EXPECT_EQ(last["type"], cut ? "response.incomplete" : "response.completed");
    EXPECT_EQ(last["response"]["output"], items);
    if (cut) continue;
    EXPECT_EQ(items[1]["type"], "local_shell_call");
    EXPECT_EQ(items[1]["action"],
              json({{"type", "exec"}, {"command", {"ls", "5"}}, {"env", json::object()}}));
  }
}

TEST_F(Api, ChatHasCustomTools) {
  const json custom = {
      {"name", "apply_patch"},
      {"description", "Changes files."},
      {"format", {{"type", "grammar"}, {"grammar", {{"syntax", "lark"}, {"definition", "start: X"}}}}}};
  const json tools = {{{"type", "custom"}, {"custom", custom}}, kTools[1]};
  const std::string said = kPatchCall + kCallEnd + "<tool_call>clock</tool_call>";
  const auto expect_calls = [](const json& calls) {
    ASSERT_EQ(calls.size(), 2u) << calls;
    EXPECT_EQ(calls[0]["type"], "custom");
    EXPECT_EQ(calls[0]["custom"], json({{"name", "apply_patch"}, {"input", kPatch}}));
    EXPECT_EQ(calls[1]["type"], "function");
    EXPECT_EQ(calls[1]["function"], json({{"name", "clock"}, {"arguments", "{}"}}));
  };
  say(said);
  json body = chat({{"tools", tools}});
  const json choice = post("/v1/chat/completions", body).json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  expect_calls(choice["message"]["tool_calls"]);
  body["stream"] = true;
  say(said);
  json streamed = json::array();
  int inputs = 0;
  for (const json& chunk : chunks(post("/v1/chat/completions", body)))
    for (const json& part : chunk["choices"][0]["delta"].value("tool_calls", json::array())) {
      const size_t index = part["index"];
      if (index == streamed.size()) {
        streamed.push_back(part);
        continue;
      }
      for (const auto& [of, name] : {std::pair("custom", "input"), std::pair("function", "arguments")})
        if (part.contains(of)) {
          json& text = streamed[index][of][name];
          text = text.get<std::string>() + part[of][name].get<std::string>();
          inputs += of == std::string("custom");
        }
    }
  expect_calls(streamed);
  EXPECT_GT(inputs, 10) << "it comes as it is written";

  // The model sees the tool, its earlier calls and what came of them.
  json messages = body["messages"];
  messages.push_back(choice["message"]);
  messages.push_back({{"role", "tool"}, {"tool_call_id", "c"}, {"content", "patched"}});
  const std::string prompt =
      post("/apply-template", {{"messages", messages}, {"tools", tools}}).json()["prompt"];
  EXPECT_THAT(prompt, testing::AllOf(HasSubstr("Changes files."), HasSubstr("start: X"),
                                     HasSubstr("<arg_key>input</arg_key><arg_value>" + kPatch),
                                     HasSubstr("patched")));
  body =
      chat({{"tools", tools}, {"tool_choice", {{"type", "custom"}, {"custom", {{"name", "apply_patch"}}}}}});
  say("</think>x");
  const json forced = post("/v1/chat/completions", body).json()["choices"][0]["message"];
  EXPECT_EQ(forced["tool_calls"][0]["custom"]["name"], "apply_patch");
  body["tools"][0]["custom"]["format"]["grammar"]["syntax"] = 5;
  EXPECT_EQ(post("/v1/chat/completions", body).json()["error"]["param"],
            "tools[0].custom.format.grammar.syntax");
}

TEST_F(Api, ToolsThatASearchHasFoundCanBeCalled) {
  const json search = {
      {"type", "tool_search"}, {"execution", "client"}, {"parameters", {{"type", "object"}}}};
  const json found = {{"type", "function"}, {"name", "late"}, {"parameters", {{"type", "object"}}}};
  say("</think><tool_call>tool_search<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>");
  const json call =
      post("/v1/responses", {{"input", "x"}, {"tools", json::array({search})}}).json()["output"][0];
  EXPECT_EQ(call["type"], "tool_search_call");
  EXPECT_EQ(call["arguments"]["query"], "x");
  const json output = {
      {"type", "tool_search_output"}, {"call_id", call["call_id"]}, {"tools", json::array({found})}};
  say("</think><tool_call>late</tool_call>");
  const json next = post("/v1/responses", {{"input", {{{"role", "user"}, {"content", "x"}}, call, output}},
                                           {"tools", json::array({search})}})
                        .json();
  EXPECT_EQ(next["output"][0]["type"], "function_call") << next;
  EXPECT_EQ(next["output"][0]["name"], "late");
}

TEST_F(Api, PicturesOfToolsBecomeNotes) {
  const json image = {{"type", "image"}, {"source", {{"type", "base64"}, {"data", "AA=="}}}};
  const auto messages = [](const json& content) {
    return json{
        {"messages",
         {{{"role", "user"}, {"content", "look"}},
          {{"role", "assistant"},
           {"content", {{{"type", "tool_use"}, {"id", "t"}, {"name", "r"}, {"input", json::object()}}}}},
          {{"role", "user"},
           {"content", {{{"type", "tool_result"}, {"tool_use_id", "t"}, {"content", content}}}}}}}};
  };
  const int64_t empty = post("/v1/messages/count_tokens", messages("")).json()["input_tokens"];
  const json note = post("/v1/messages/count_tokens", messages(json::array({image}))).json();
  EXPECT_GT(note["input_tokens"], empty + 10);
  const json document = {{"type", "document"}, {"source", {{"type", "text"}, {"data", "words"}}}};
  EXPECT_EQ(post("/v1/messages/count_tokens", messages(json::array({document}))).json()["input_tokens"],
            empty + 5);
  const json found = {{"type", "search_result"},
                      {"title", "t"},
                      {"source", "s"},
                      {"content", {{{"type", "text"}, {"text", "f"}}}}};
  EXPECT_EQ(post("/v1/messages/count_tokens", messages(json::array({found}))).json()["input_tokens"],
            empty + 5);
  // The user's own is an error that says so.
  const Reply reply =
      post("/v1/messages/count_tokens", {{"messages", {{{"role", "user"}, {"content", {image}}}}}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(reply.body, HasSubstr("text alone"));
  const Reply pdf =
      post("/v1/messages/count_tokens",
           {{"messages",
             {{{"role", "user"}, {"content", {{{"type", "document"}, {"source", {{"type", "base64"}}}}}}}}}});
  EXPECT_EQ(pdf.status, 400);
}

TEST_F(Api, PartsOfEarlierAnswersAreRead) {
  const auto prompt = [&](const json& parts) {
    const json body = {{"messages",
                        {{{"role", "user"}, {"content", "a"}},
                         {{"role", "assistant"}, {"content", parts}},
                         {{"role", "user"}, {"content", "b"}}}}};
    return post("/apply-template", body).json()["prompt"].get<std::string>();
  };
  EXPECT_THAT(prompt({{{"type", "refusal"}, {"refusal", "I may not"}}}), HasSubstr("I may not"));
  EXPECT_THAT(prompt({{{"type", "output_text"}, {"text", "said"}}}), HasSubstr("said"));
  EXPECT_THAT(prompt({{{"type", "thinking"}, {"thinking", "hm"}}, {{"type", "text"}, {"text", "said"}}}),
              HasSubstr("</think>said"));
  EXPECT_THAT(prompt({{{"type", "tomorrows"}, {"x", 1}}, {{"type", "text"}, {"text", "said"}}}),
              HasSubstr("said"));
}

TEST_F(Api, APartWithoutItsTextIsNoError) {
  const json body = {{"messages",
                      {{{"role", "user"}, {"content", "a"}},
                       {{"role", "assistant"}, {"content", json::array({{{"type", "text"}}})}},
                       {{"role", "user"}, {"content", "b"}}}}};
  EXPECT_EQ(post("/apply-template", body).status, 200);
  EXPECT_EQ(post("/v1/messages/count_tokens", body).status, 200);
}

// Lists of a tool's own are no list of parts.
TEST_F(Api, WhatToolsGaveBackIsShownAsItIs) {
  const json rows = json::parse(R"([{"stdout":"sixty"},{"type":7,"text":"seven"},[8],9,null,"ten"])");
  const json body = {{"messages",
                      {{{"role", "user"}, {"content", "a"}},
                       {{"role", "assistant"},
                        {"content", ""},
                        {"tool_calls", {{{"id", "1"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}}}}},
                       {{"role", "tool"}, {"tool_call_id", "1"}, {"content", rows}}}}};
  const Reply reply = post("/apply-template", body);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_THAT(reply.json()["prompt"].get<std::string>(),
              HasSubstr(R"({"stdout":"sixty"}{"text":"seven","type":7}[8]9ten)"));
  const json answered = {{"messages",
                          {{{"role", "user"}, {"content", "a"}},
                           {{"role", "assistant"}, {"content", rows}},
                           {{"role", "user"}, {"content", "b"}}}}};
  EXPECT_EQ(post("/v1/messages/count_tokens", answered).status, 200);

  say("</think>x");
  const auto tokens = [&](const json& output) {
    json input = {{{"role", "user"}, {"content", "a"}}};
    input.push_back(output);
    const Reply answer = post("/v1/responses", {{"input", input}});
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.status == 200 ? answer.json()["usage"]["input_tokens"].get<int64_t>() : 0;
  };
  const json none = {{"type", "shell_call_output"}, {"call_id", "1"}, {"output", ""}};
  const json shell = {{"type", "shell_call_output"}, {"call_id", "1"}, {"output", {{{"stdout", "sixty"}}}}};
  EXPECT_EQ(tokens(shell), tokens(none) + 18);  // a token a byte
  const json picture = {{"type", "computer_screenshot"}, {"image_url", std::string(1000, 'A')}};
  const json computer = {{"type", "computer_call_output"}, {"call_id", "1"}, {"output", picture}};
  EXPECT_THAT(tokens(computer) - tokens(none), testing::AllOf(testing::Gt(10), testing::Lt(100)));
  // Calls of tools that are not known here show all that they say.
  const auto call = [](const json& more) {
    json item = {{"type", "apply_patch_call"}, {"id", "i"}, {"call_id", "1"}, {"status", "completed"}};
    item.update(more);
    return item;
  };
  EXPECT_GT(tokens(call({{"operation", {{"type", "delete_file"}, {"path", "a"}}}})),
            tokens(call(json::object())) + 40);
}

TEST_F(Api, ChoicesOfToolsHaveEitherForm) {
  say("</think>x");
  const json flat = {{"type", "function"}, {"name", "clock"}};
  const json nested = {{"type", "function"}, {"function", {{"name", "clock"}}}};
  const json others = {{"type", "mcp"}, {"server_label", "s"}, {"name", "n"}};
  const auto ask = [&](bool chat_completions, const json& choice) {
    json tools = kTools;
    json body = chat({{"tools", tools}, {"tool_choice", choice}, {"max_tokens", 3}});
    if (!chat_completions) {
      for (json& tool : tools) tool.update(tool["function"]), tool.erase("function");
      body = {{"input", "x"}, {"tools", tools}, {"tool_choice", choice}, {"max_output_tokens", 3}};
    }
    return post(chat_completions ? "/v1/chat/completions" : "/v1/responses", body);
  };
  const auto tokens = [](const Reply& reply, bool chat_completions) -> int64_t {
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json()["usage"][chat_completions ? "prompt_tokens" : "input_tokens"];
  };
  for (const bool chat_completions : {true, false}) {
    const int64_t all = tokens(ask(chat_completions, "auto"), chat_completions);
    for (const json& choice : {flat, nested})
      EXPECT_EQ(tokens(ask(chat_completions, choice), chat_completions), all);
    const json list = {{"mode", "auto"}, {"tools", {flat, nested, others}}};
    json beside = list;
    beside["type"] = "allowed_tools";
    const int64_t allowed = tokens(ask(chat_completions, beside), chat_completions);
    EXPECT_LT(allowed, all - 50);  // the model is not shown the other one
    EXPECT_EQ(
        tokens(ask(chat_completions, {{"type", "allowed_tools"}, {"allowed_tools", list}}), chat_completions),
        allowed);
    for (const json& wrong :
         {json("sometimes"), json(5), json{{"type", "function"}}, json{{"type", "web_search"}},
          json{{"type", "function"}, {"name", "nope"}}, json{{"type", "allowed_tools"}, {"mode", "auto"}}})
      EXPECT_EQ(ask(chat_completions, wrong).status, 400) << wrong;
  }
}

TEST_F(Api, FieldsOfOtherServicesAreLeftOut) {
  say("</think>x");
  EXPECT_EQ(post("/v1/chat/completions", chat({{"moderation", {{"model", "m"}}}})).status, 200);
  EXPECT_EQ(post("/v1/responses", {{"input", "x"},
                                   {"reasoning", {{"mode", "standard"}}},
                                   {"prompt_cache_options", {{"mode", "implicit"}}},
                                   {"context_management", {{{"type", "compaction"}}}}})
                .status,
            200);
}

TEST_F(Api, FieldsThatAskForNothingArePassedOver) {
  say("</think>abcdefgh");
  const auto ask = [&](const json& more) { return post("/v1/chat/completions", chat(more)).status; };
  for (const json& more : {json{{"unknown", json::array()}}, json{{"unknown", json::object()}},
                           json{{"unknown", ""}}, json{{"unknown", nullptr}}, json{{"typ_p", 1}},
                           json{{"best_of", 1}}, json{{"post_sampling_probs", false}}})
    EXPECT_EQ(ask(more), 200) << more;
  for (const json& more : {json{{"unknown", {0}}}, json{{"unknown", false}}, json{{"unknown", 0}},
                           json{{"unknown", " "}}, json{{"best_of", 2}}, json{{"echo", true}}})
    EXPECT_EQ(ask(more), 400) << more;
  EXPECT_EQ(post("/v1/chat/completions", chat({{"n_predict", 3}})).json()["usage"]["completion_tokens"], 3);
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1} << 63, UINT64_MAX})
    EXPECT_EQ(ask({{"seed", seed}}), 200) << seed;
  EXPECT_EQ(ask({{"seed", "7"}}), 400);
  const std::string body = chat({{"seed", 4711}}).dump();
  const std::string large = std::string(body).replace(body.find("4711"), 4, "18446744073709551616");
  EXPECT_EQ(Client(server_->port()).ask("POST", "/v1/chat/completions", large).status, 400);
}

/// How much a model thinks is asked for in four ways; the template is told the same.
TEST(Effort, IsTheSameInAllApis) {
  test::ParrotServer server(test::quick_server(), test::ParrotServer::small(), "openai-gpt-oss-120b");
  server.parrot.say("<|channel|>final<|message|>x");
  const json messages = {{{"role", "user"}, {"content", "hello"}}};
  const auto ask = [&](const char* path, const json& body) {
    return Client(server.port()).post(path, body).json();
  };
  std::vector<int> lengths;
  for (const std::string effort : {"low", "medium", "high"}) {
    const json chat = {{"messages", messages}, {"reasoning_effort", effort}};
    lengths.push_back(ask("/v1/chat/completions", chat)["usage"]["prompt_tokens"]);
    EXPECT_EQ(ask("/v1/responses",
                  {{"input", "hello"}, {"reasoning", {{"effort", effort}}}})["usage"]["input_tokens"],
              lengths.back());
    const json claude = {{"max_tokens", 50}, {"messages", messages}, {"output_config", {{"effort", effort}}}};
    const json usage = ask("/v1/messages", claude)["usage"];
    EXPECT_EQ(usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>(), lengths.back());
    EXPECT_EQ(ask("/v1/messages/count_tokens", claude)["input_tokens"], lengths.back());
    EXPECT_EQ(
        ask("/api/chat", {{"messages", messages}, {"think", effort}, {"stream", false}})["prompt_eval_count"],
        lengths.back());
  }
  // Of the words alone: each letter is a token here.
  EXPECT_EQ(lengths[1] - lengths[0], 3);
  EXPECT_EQ(lengths[2] - lengths[0], 1);
}

/// Anthropic's API takes ids of letters, digits, _ and - alone, and a client may go on there.
TEST(CallIds, OfChannelsAreOfThisServersMaking) {
  test::ParrotServer server(test::quick_server(), test::ParrotServer::small(), "openai-gpt-oss-120b");
  server.parrot.say("<|channel|>commentary to=functions.clock<|message|>{}<|call|>");
  const json asked = {{"max_tokens", 90},
                      {"messages", {{{"role", "user"}, {"content", "hello"}}}},
                      {"tools", {{{"name", "clock"}, {"input_schema", {{"type", "object"}}}}}}};
  const json block = Client(server.port()).post("/v1/messages", asked).json()["content"][0];
  EXPECT_EQ(block["name"], "clock");
  EXPECT_THAT(block["id"].get<std::string>(), testing::MatchesRegex("toolu_[a-zA-Z0-9]+"));
}

TEST_F(Api, ThreadsAreRefusedInTheWordsThatClientsKnow) {
  const Reply reply =
      post("/v1/messages", {{"max_tokens", 5},
                            {"messages", {{{"role", "user"}, {"content", "x"}}}},
                            {"thread", {{"type", "continue"}, {"previous_message_id", "msg_1"}}}});
  EXPECT_EQ(reply.status, 400);
  const json details = reply.json()["error"]["details"];
  EXPECT_EQ(details["error_code"], "thread_unsupported_request");
  EXPECT_EQ(details["unsupported"], json({"thread"}));
}

TEST_F(Api, ALastAnswerGoesOn) {
  const json messages = {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "Once"}}};
  const auto prompt = [&](json more) {
    more["messages"] = messages;
    return post("/apply-template", more).json()["prompt"].get<std::string>();
  };
  EXPECT_TRUE(prompt({}).ends_with("Once"));
  EXPECT_TRUE(prompt({{"continue_final_message", true}, {"add_generation_prompt", false}}).ends_with("Once"));
  EXPECT_TRUE(prompt({{"add_generation_prompt", true}}).ends_with("<|assistant|><think>"));
  EXPECT_EQ(post("/apply-template",
                 {{"messages", messages}, {"continue_final_message", true}, {"add_generation_prompt", true}})
                .status,
            400);
  // Chat completions begin a new answer unless they are told to go on, as OpenAI's do; tokens likewise.
  const auto content = [&](json more) {
    more["messages"] = messages;
    say("new</think>answer");
    return post("/v1/chat/completions", more).json()["choices"][0]["message"];
  };
  EXPECT_EQ(content({})["reasoning_content"], "new");
  EXPECT_EQ(content({{"add_generation_prompt", true}})["reasoning_content"], "new");
  EXPECT_EQ(content({{"continue_final_message", false}})["reasoning_content"], "new");
  EXPECT_EQ(content({{"continue_final_message", true}})["content"], "new</think>answer");
  EXPECT_EQ(content({{"add_generation_prompt", false}})["content"], "new</think>answer");
  EXPECT_GT(post("/tokenize", {{"messages", messages}}).json()["count"],
            post("/tokenize", {{"messages", messages}, {"continue_final_message", true}}).json()["count"]);
  say(" upon a time");
  const json reply = post("/v1/messages", {{"max_tokens", 50}, {"messages", messages}}).json();
  EXPECT_EQ(reply["content"][0]["text"], " upon a time");
  const json count = post("/v1/messages/count_tokens", {{"messages", messages}}).json();
  EXPECT_EQ(reply["usage"]["input_tokens"].get<int>() + reply["usage"]["cache_read_input_tokens"].get<int>(),
            count["input_tokens"]);
}

TEST_F(Api, FieldsWithAMeaningAreHonouredOrRefused) {
  const auto ask = [&](const json& more) { return post("/v1/chat/completions", chat(more)); };
  say("</think>abcdefgh");
  EXPECT_EQ(ask({{"num_predict", 3}}).json()["usage"]["completion_tokens"], 3);
  EXPECT_EQ(ask({{"options", {{"num_predict", 4}, {"num_gpu", 9}}}}).json()["usage"]["completion_tokens"], 4);
  EXPECT_EQ(ask({{"extra_body", {{"max_tokens", 5}}}}).json()["usage"]["completion_tokens"], 5);
  EXPECT_EQ(
      ask({{"max_tokens", 2}, {"extra_body", {{"max_tokens", 5}}}}).json()["usage"]["completion_tokens"], 2);
  for (const json& more :
       {json{{"options", {{"tempratur", 1}}}}, json{{"extra_body", 5}}, json{{"num_ctx", 1 << 20}},
        json{{"reasoning_format", "none"}}, json{{"include_reasoning", false}},
        json{{"modalities", {"audio"}}}, json{{"thinking", {{"type", "enabled"}, {"clear", false}}}},
        json{{"reasoning", {{"exclude", true}}}}})
    EXPECT_EQ(ask(more).status, 400) << more;
  for (const json& more :
       {json{{"num_ctx", 2048}}, json{{"reasoning_format", "auto"}}, json{{"modalities", {"text"}}},
        json{{"continue_final_message", false}}, json{{"include_reasoning", true}}})
    EXPECT_EQ(ask(more).status, 200) << more;
  const json history = {{{"role", "user"}, {"content", "a"}},
                        {{"role", "assistant"}, {"content", "b"}, {"reasoning_content", "one two"}},
                        {{"role", "user"}, {"content", "c"}}};
  const auto tokens = [&](json more) {
    more["messages"] = history;
    return ask(more).json()["usage"]["prompt_tokens"].get<int>();
  };
  EXPECT_EQ(tokens({{"thinking", {{"type", "enabled"}, {"clear_thinking", false}}}}),
            tokens({{"chat_template_kwargs", {{"clear_thinking", false}}}}));
  EXPECT_GT(tokens({{"thinking", {{"type", "enabled"}, {"clear_thinking", false}}}}), tokens(json::object()));
}

TEST_F(Api, LongNumbersKeepTheirDigits) {
  const std::string digits = "12345678901234567890123";
  const std::string body = R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,
    "tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"id\": )" +
                           digits +
                           R"(}"}}]},{"role":"tool","tool_call_id":"c","content":"ok"}],
    "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object",
    "properties":{"id":{"type":"integer","maximum":)" +
                           digits + R"(}}}}}]})";
  const Reply reply = Client(server_->port()).ask("POST", "/apply-template", body);
  EXPECT_THAT(reply.body, HasSubstr("<arg_value>" + digits));
  EXPECT_THAT(reply.body, HasSubstr(R"(maximum\": )" + digits));
  EXPECT_THAT(reply.body, Not(HasSubstr("e+22")));
  say("</think><tool_call>f<arg_key>id</arg_key><arg_value>" + digits + "</arg_value></tool_call>");
  const Reply called =
      Client(server_->port())
          .ask("POST", "/v1/messages", R"({"max_tokens":200,"messages":[{"role":"user","content":"x"}],
    "tools":[{"name":"f","input_schema":{"type":"object","properties":{"id":{"type":"integer"}}}}]})");
  EXPECT_THAT(called.body, HasSubstr("\"id\":" + digits));
}

/// Lines of a server's log, as they come.
struct Lines {
  std::mutex mutex;
  std::string all;
  std::string wait_for(const std::string& words) {
    for (int i = 0; i < 500; ++i) {
      {
        const std::lock_guard lock(mutex);
        if (all.find(words) != std::string::npos) return all;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return all;
  }
};

TEST(RequestLog, HasALineARequestAndNoTexts) {
  Lines lines;
  ServerOptions options = test::quick_server();
  options.api_keys = {"secret-key"};
  options.log = {LogLevel::Requests, [&lines](std::string_view line) {
                   const std::lock_guard lock(lines.mutex);
                   lines.all += std::string(line) + "\n";
                 }};
  test::ParrotServer server(options);
  server.parrot.say("</think>answered words");
  const std::string key = "Authorization: Bearer secret-key\r\n";
  const json body = {{"model", "my\nmodel"},
                     {"messages", {{{"role", "user"}, {"content", "private question"}}}},
                     {"tools", {{{"type", "retrieval"}}}}};
  EXPECT_EQ(Client(server.port()).post("/v1/chat/completions", body, key).status, 200);
  std::string all = lines.wait_for("finish");
  for (const char* words : {" POST /v1/chat/completions 200 client key ", " model my?model ", " in ",
                            " cached 0 out 23 ", "finish end", "left out: tools[0]"})
    EXPECT_THAT(all, HasSubstr(words));
  json anthropic = {{"max_tokens", 3}, {"tomorrows_field", 1}, {"messages", body["messages"]}};
  EXPECT_EQ(Client(server.port()).post("/v1/messages", anthropic, key).status, 200);
  EXPECT_THAT(lines.wait_for("tomorrows"), HasSubstr("left out: tomorrows_field: not known here"));
  EXPECT_EQ(Client(server.port()).post("/v1/chat/completions", {{"messages", 5}}, key).status, 400);
  EXPECT_THAT(lines.wait_for(" 400 "), HasSubstr("/v1/chat/completions 400"));
  EXPECT_EQ(Client(server.port()).post("/v1/messages", body, "x-api-key: wrong-one\r\n").status, 401);
  all = lines.wait_for(" 401 ");
  EXPECT_THAT(all, HasSubstr("/v1/messages 401"));
  for (const char* secret : {"secret-key", "wrong-one", "private", "answered"})
    EXPECT_THAT(all, Not(HasSubstr(secret)));
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 4) << all;
  EXPECT_EQ(Client(server.port()).ask("GET", "/v1/models", "", "Authorization: Bearer wrong-one\r\n").status,
            401);
  EXPECT_EQ(Client(server.port()).ask("GET", "/v1/models").status, 200);
}

TEST(RequestLog, SaysOnceWhatACompletionIsNotBoundTo) {
  Lines lines;
  test::ParrotServer server(test::quick_server());
  server.service().log = [&lines](const std::string& line) {
    const std::lock_guard lock(lines.mutex);
    lines.all += line + "\n";
  };
  const json schema = {{"type", "array"}, {"items", {{"type", "string"}}}, {"uniqueItems", true}};
  json body = {{"prompt", "x"},
               {"max_tokens", 3},
               {"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", schema}}}}}};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Client(server.port()).post("/v1/completions", body).status, 200);
  body["response_format"]["json_schema"]["strict"] = true;
  const Reply refused = Client(server.port()).post("/v1/completions", body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "response_format");
  EXPECT_THAT(refused.body, HasSubstr("$.uniqueItems"));
  const std::string all = lines.wait_for("not bound");
  size_t notes = 0;
  for (size_t at = all.find("not bound"); at != std::string::npos; at = all.find("not bound", at + 1))
    ++notes;
  EXPECT_EQ(notes, 1u) << all;
  EXPECT_THAT(all, HasSubstr("$.uniqueItems"));
  const Reply grammar =
      Client(server.port())
          .post("/v1/completions", {{"prompt", "x"}, {"grammar", "root ::="}, {"max_tokens", 1}});
  EXPECT_NE(grammar.status, 500);
  EXPECT_EQ(Client(server.port())
                .post("/v1/completions", {{"prompt", "x"}, {"grammar", "root = 5"}})
                .json()["error"]["param"],
            "grammar");
}

// Brackets within brackets, a hundred thousand of them, wherever a body may have JSON or text that is read
// by its structure.
TEST(DeepBodies, AreAnsweredWithAnError) {
  test::ParrotServer server(test::quick_server());
  const auto times = [](const std::string& text, size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += text;
    return out;
  };
  const size_t many = 100'000;
  const std::string lists = times("[", many) + times("]", many),
                    objects = times("{\"a\":", many) + "1" + times("}", many);
  const std::string chat = R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1,)";
  for (const std::string& deep : {lists, objects, times("[", many), times("{\"a\":[", many)}) {
    for (const std::string& body :
         {deep, chat + "\"metadata\":" + deep + "}", chat + "\"tools\":" + deep + "}",
          chat + "\"chat_template_kwargs\":" + deep + "}",
          chat + R"("response_format":{"type":"json_schema","json_schema":{"schema":)" + deep + "}}}",
          R"({"max_tokens":1,"messages":)" + deep + "}"}) {
      for (const char* path :
           {"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions", "/tokenize"}) {
        const Reply reply = Client(server.port()).ask("POST", path, body);
        EXPECT_EQ(reply.status, 400) << path << " " << body.substr(0, 100);
      }
    }
  }
  for (const std::string& text :
       {times("(", many), times("[", many), times("(a|", many), times("\"a\"{2}", 3) + times("?", many)}) {
    const json form = {{"type", "json_schema"},
                       {"json_schema", {{"schema", {{"type", "string"}, {"pattern", text}}}}}};
    EXPECT_EQ(
        Client(server.port()).post("/v1/completions", {{"prompt", "x"}, {"response_format", form}}).status,
        400);
    EXPECT_NE(
        Client(server.port())
            .post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 1}, {"grammar", "root ::= " + text}})
            .status,
        500);
  }
  // What a model's earlier call had as arguments is text that is read as JSON.
  for (const std::string& deep : {lists, objects}) {
    const json call = {{"id", "c"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", deep}}}};
    const json body = {{"max_tokens", 1},
                       {"messages",
                        {{{"role", "user"}, {"content", "x"}},
                         {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}},
                         {{"role", "tool"}, {"tool_call_id", "c"}, {"content", deep}}}}};
    EXPECT_NE(Client(server.port()).post("/v1/chat/completions", body).status, 500);
  }
  EXPECT_EQ(Client(server.port()).ask("GET", "/health").status, 200);
}

}  // namespace
}  // namespace sluice::server
