#include "server/responses_request.h"

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
  } else {
    item.ignore({"id", "status"});
    for (const std::string& other : item.unread()) arguments[other] = *item.any(other);
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
    if (output && type == "computer_call_output") {  // a picture
      Content shown;
      read_part(*output, item.path_of("output"), kHistoryRule, shown, request.left_out);
      text = std::move(shown.text);
    } else if (output) {
      text = read_content(*output, item.path_of("output"), kHistoryRule, request.left_out).text;
    }
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
    chat.read_effort(inner, "effort");
    inner.ignore({"summary", "generate_summary", "context", "mode"});
    inner.finish();
  }
  read_sampling(fields, service, chat.engine.sampling);
  read_stops(fields, "stop", chat.engine);
  chat.engine.max_tokens = fields.integer("max_output_tokens", 1, INT32_MAX).value_or(-1);
  if (const auto top = fields.integer("top_logprobs", 0, engine::Request::kMostTopLogprobs); top && *top > 0)
    bad_field("top_logprobs", "is not supported here; chat completions have it");
  chat.stream = fields.boolean("stream").value_or(false);
  fields.ignore({"store", "metadata", "user", "include", "truncation", "service_tier", "safety_identifier",
                 "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "stream_options",
                 "max_tool_calls", "client_metadata", "background_options", "access_programs", "image"});
  for (const char* name : {"context_management", "moderation"})
    if (fields.any(name)) chat.left_out.push_back(fmt::format("{}: there is none here", name));
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
