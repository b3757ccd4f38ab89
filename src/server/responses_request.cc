#include "server/responses_request.h"

#include <set>

#include "text/exact_json.h"
#include "text/json_text.h"

namespace sluice::server {

namespace {

/// Of a field that the answer repeats, in up to three events.
constexpr size_t kMostEchoBytes = 1 << 20;

constexpr ContentRule kUserRule{.from_user = true};
constexpr ContentRule kHistoryRule{.from_user = false};

/// The assistant's turn that calls and reasoning belong to: the last message, or a new one.
Json& assistant_turn(Json& messages) {
  if (messages.empty() || messages.back()["role"] != "assistant")
    messages.push_back({{"role", "assistant"}, {"content", ""}});
  return messages.back();
}

void read_message(Fields& item, ChatRequest& request) {
  Json& messages = request.conversation.messages;
  const auto role = item.choice("role", {"user", "assistant", "system", "developer"});
  const Json* content = item.any("content");
  if (!role) bad_field(item.path_of("role"), "is missing");
  if (!content) bad_field(item.path_of("content"), "is missing");
  std::string text = read_content(*content, item.path_of("content"),
                                  *role == "assistant" ? kHistoryRule : kUserRule, request.left_out)
                         .text;
  if (*role == "assistant") {
    Json& turn = assistant_turn(messages);
    if (turn["content"] == "" && !turn.contains("tool_calls")) {
      turn["content"] = std::move(text);  // what its reasoning led to
      return;
    }
  }
  messages.push_back({{"role", *role}, {"content", std::move(text)}});
}

/// The name and arguments of a call of any kind, as the function that stands for its tool has them.
Json called_function(Fields& item, const std::string& type) {
  const Json* item_name = item.any("name");
  std::string name = item_name && item_name->is_string()
                         ? item_name->get<std::string>()
                         : type.substr(0, type.size() - std::string_view("_call").size());
  if (const auto space = item.string("namespace"); space && !space->empty())
    name = name_in_space(*space, name);
  Json arguments = Json::object();
  if (const Json* text = item.any("arguments")) {
    arguments = *text;
    if (!arguments.is_object() && !arguments.is_string()) arguments = text::dump_exact(arguments);
  } else if (const Json* input = item.any("input")) {
    arguments = {{"input", *input}};
  } else if (const Json* action = item.any("action"); action && action->is_object()) {
    arguments = *action;
    arguments.erase("type");
  }
  return {{"name", name}, {"arguments", std::move(arguments)}};
}

/// Calls and their results are alike whatever the tool: only the client knows what they do. What ran at the
/// maker's server has no call_id.
void read_item(Fields& item, const std::string& type, ChatRequest& request, Json& found_tools) {
  Json& messages = request.conversation.messages;
  const auto id = item.string("call_id");
  const bool function = type == "function_call" || type == "function_call_output";
  if (function && !id) bad_field(item.path_of("call_id"), "is missing");
  if (type == "message") {
    read_message(item, request);
  } else if (type == "function_call" && !item.string("name")) {
    bad_field(item.path_of("name"), "is missing");
  } else if (type == "function_call" && !item.any("arguments")) {
    bad_field(item.path_of("arguments"), "is missing");
  } else if (id && type.ends_with("_call")) {
    assistant_turn(messages)["tool_calls"].push_back(
        {{"id", *id}, {"type", "function"}, {"function", called_function(item, type)}});
  } else if (id && type.ends_with("_output")) {
    const Json* output = item.any("output");
    if (function && !output) bad_field(item.path_of("output"), "is missing");
    std::string text;
    if (const Json* tools = item.array("tools"); tools && !output) {  // what a search for tools has found
      for (const Json& tool : *tools) found_tools.push_back(tool);
      text = text::dump_exact(*tools);
    }
    if (output && (output->is_string() || output->is_array()))
      text = read_content(*output, item.path_of("output"), kHistoryRule, request.left_out).text;
    else if (output)
      text = text::dump_exact(*output);
    messages.push_back({{"role", "tool"}, {"tool_call_id", *id}, {"content", std::move(text)}});
  } else if (type == "reasoning") {
    const Json* content = item.array("content");
    if (!content || content->empty()) content = item.array("summary");
    if (!content) return;
    const Content said = read_content(*content, item.path_of("content"), kHistoryRule, request.left_out);
    const std::string text = said.text + said.thinking;
    if (!text.empty())
      messages.push_back({{"role", "assistant"}, {"content", ""}, {"reasoning_content", text}});
  } else if (type == "item_reference") {
    bad_field(item.path_of("type"), "this server keeps no items: send the whole conversation as input");
  } else {
    request.left_out.push_back(fmt::format("{}: an item of type {}", item.path(), text::json_quote(type)));
  }
}

void read_input(const Json* input, const std::optional<std::string>& instructions, ChatRequest& request,
                Json& found_tools) {
  Json& messages = request.conversation.messages = Json::array();
  if (instructions && !instructions->empty())
    messages.push_back({{"role", "system"}, {"content", *instructions}});
  if (!input) bad_field("input", "is missing");
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
    return;
  }
  if (!input->is_array() || input->empty()) bad_field("input", "expected a string or an array of items");
  for (size_t i = 0; i < input->size(); ++i) {
    Fields item((*input)[i], fmt::format("input[{}]", i));
    read_item(item, item.string("type").value_or("message"), request, found_tools);
  }
  if (messages.empty()) bad_field("input", "there is no item that can be read here");
}

/// The function that a choice names: {"type": "function", "name": ...}, and what stands for other kinds.
std::string chosen_function(Fields& fields) {
  const std::string type = fields.string("type").value_or("function");
  const auto name = fields.string("name");
  const auto space = fields.string("namespace");
  if (type == "local_shell" || type == "shell") return "local_shell";
  if (type != "function" && type != "custom")
    bad_field(fields.path_of("type"), "{} cannot run here", text::json_quote(type));
  if (!name) bad_field(fields.path_of("name"), "is missing");
  return space && !space->empty() ? name_in_space(*space, *name) : *name;
}

/// {"type": "allowed_tools", "mode": ..., "tools": [...]}: the model is shown no others.
void allow_tools(Fields& fields, ChatRequest& chat) {
  const auto mode = fields.choice("mode", {"auto", "required"});
  const Json* list = fields.array("tools");
  if (!list) bad_field(fields.path_of("tools"), "is missing");
  fields.finish();
  std::set<std::string> allowed;
  for (size_t i = 0; i < list->size(); ++i) {
    Fields one((*list)[i], fmt::format("{}[{}]", fields.path_of("tools"), i));
    if (one.any("name") || one.string("type").value_or("") == "local_shell")
      allowed.insert(chosen_function(one));
  }
  Json tools = Json::array();
  for (Json& tool : chat.conversation.tools)
    if (allowed.contains(tool["function"]["name"].get<std::string>())) tools.push_back(std::move(tool));
  chat.conversation.tools = std::move(tools);
  if (mode == "required") chat.tool_choice = {ToolChoice::Kind::Required};
}

void take_tool_choice(const Json& value, ChatRequest& chat) {
  using Kind = ToolChoice::Kind;
  if (value == "auto") return;
  if (value == "none" || value == "required") {
    chat.tool_choice = {value == "none" ? Kind::None : Kind::Required};
    return;
  }
  if (value.is_string())
    bad_field("tool_choice", "expected auto, none, required or an object that names a function");
  Fields fields(value, "tool_choice");
  if (fields.string("type").value_or("") == "allowed_tools") return allow_tools(fields, chat);
  chat.tool_choice = {Kind::Named, chosen_function(fields)};
  fields.finish();
}

}  // namespace

ResponsesRequest read_responses(const Json& body, const Service& service) {
  Fields fields(body);
  ResponsesRequest request;
  ChatRequest& chat = request.chat;
  fields.string("model");
  Json found_tools = Json::array();
  read_input(fields.any("input"), fields.string("instructions"), chat, found_tools);
  for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
    if (fields.any(name)) bad_field(name, "this server keeps no state: send the whole conversation as input");
  }
  if (fields.boolean("background").value_or(false)) bad_field("background", "is not supported");
  if (const Json* tools = fields.array("tools"))
    chat.conversation.tools = responses_tools(*tools, chat.origins, chat.left_out);
  for (Json& tool : responses_tools(found_tools, chat.origins, chat.left_out))
    chat.conversation.tools.push_back(std::move(tool));
  if (const Json* choice = fields.any("tool_choice")) take_tool_choice(*choice, chat);
  chat.parallel_calls = fields.boolean("parallel_tool_calls").value_or(true);
  if (const Json* text = fields.object("text")) {
    Fields inner(*text, "text");
    if (const Json* format = inner.object("format")) chat.form = read_form(*format, "text.format");
    inner.ignore({"verbosity"});
    inner.finish();
  }
  if (const Json* kwargs = fields.object("chat_template_kwargs"))
    chat.conversation.template_arguments = *kwargs;
  if (const Json* reasoning = fields.object("reasoning")) {
    Fields inner(*reasoning, "reasoning");
    const auto effort = inner.choice("effort", {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
    if (effort) chat.set_thinking(*effort != "none");
    inner.ignore({"summary", "generate_summary", "context"});
    inner.finish();
  }
  read_sampling(fields, service, chat.engine.sampling);
  read_stops(fields, "stop", chat.engine);
  chat.engine.max_tokens = fields.integer("max_output_tokens", 1, INT32_MAX).value_or(-1);
  if (const auto top = fields.integer("top_logprobs", 0, engine::Request::kMostTopLogprobs); top && *top > 0)
    bad_field("top_logprobs", "is not supported here; chat completions have it");
  chat.stream = fields.boolean("stream").value_or(false);
  fields.ignore({"store", "metadata", "user", "include", "truncation", "service_tier", "safety_identifier",
                 "prompt_cache_key", "prompt_cache_retention", "stream_options", "max_tool_calls",
                 "client_metadata"});
  fields.finish();
  for (const char* name : {"instructions", "max_output_tokens", "tools", "tool_choice", "parallel_tool_calls",
                           "text", "reasoning", "temperature", "top_p", "metadata", "truncation", "user"}) {
    if (!body.contains(name)) continue;
    if (text::dump_exact(body[name]).size() <= kMostEchoBytes) {
      request.echo[name] = body[name];
    } else {
      chat.left_out.push_back(fmt::format("{}: not repeated in the answer, for its size", name));
    }
  }
  return request;
}

}  // namespace sluice::server
