#include "server/responses_request.h"

#include "text/json_text.h"

namespace sluice::server {

namespace {

/// A string, or parts of text.
std::string read_text(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    bad_field(path, "expected a string or an array of parts, not {}", json_kind(content));
  std::string all;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], fmt::format("{}[{}]", path, i));
    const auto type = part.string("type");
    const bool is_text = type && (*type == "input_text" || *type == "output_text" || *type == "text" ||
                                  *type == "summary_text" || *type == "reasoning_text" || *type == "refusal");
    if (!is_text)
      bad_field(part.path_of("type"), "expected input_text or output_text: this server knows text alone");
    const auto text = part.string(*type == "refusal" ? "refusal" : "text");
    if (!text) bad_field(part.path_of("text"), "is missing");
    all += *text;
  }
  return all;
}

/// The assistant's turn that calls and reasoning belong to: the last message, or a new one.
Json& assistant_turn(Json& messages) {
  if (messages.empty() || messages.back()["role"] != "assistant")
    messages.push_back({{"role", "assistant"}, {"content", ""}});
  return messages.back();
}

void read_item(Fields& item, const std::string& type, Json& messages) {
  if (type == "message") {
    const auto role = item.choice("role", {"user", "assistant", "system", "developer"});
    const Json* content = item.any("content");
    if (!role) bad_field(item.path_of("role"), "is missing");
    if (!content) bad_field(item.path_of("content"), "is missing");
    std::string text = read_text(*content, item.path_of("content"));
    if (*role == "assistant") {
      Json& turn = assistant_turn(messages);
      const bool open = turn["content"] == "" && !turn.contains("tool_calls");
      if (open)
        turn["content"] = std::move(text);  // what its reasoning led to
      else
        messages.push_back({{"role", *role}, {"content", std::move(text)}});
    } else {
      messages.push_back({{"role", *role}, {"content", std::move(text)}});
    }
  } else if (type == "function_call") {
    const auto id = item.string("call_id"), name = item.string("name"), arguments = item.string("arguments");
    if (!id) bad_field(item.path_of("call_id"), "is missing");
    if (!name) bad_field(item.path_of("name"), "is missing");
    if (!arguments) bad_field(item.path_of("arguments"), "is missing");
    assistant_turn(messages)["tool_calls"].push_back(
        {{"id", *id}, {"type", "function"}, {"function", {{"name", *name}, {"arguments", *arguments}}}});
  } else if (type == "function_call_output") {
    const auto id = item.string("call_id");
    const Json* output = item.any("output");
    if (!id) bad_field(item.path_of("call_id"), "is missing");
    if (!output) bad_field(item.path_of("output"), "is missing");
    messages.push_back(
        {{"role", "tool"}, {"tool_call_id", *id}, {"content", read_text(*output, item.path_of("output"))}});
  } else if (type == "reasoning") {
    const Json* content = item.array("content");
    if (!content) content = item.array("summary");
    const std::string text = content ? read_text(*content, item.path_of("content")) : "";
    if (!text.empty())
      messages.push_back({{"role", "assistant"}, {"content", ""}, {"reasoning_content", text}});
  } else {
    bad_field(item.path_of("type"), "{} is not supported here", text::json_quote(type));
  }
}

Json read_input(const Json* input, const std::optional<std::string>& instructions) {
  Json messages = Json::array();
  if (instructions && !instructions->empty())
    messages.push_back({{"role", "system"}, {"content", *instructions}});
  if (!input) bad_field("input", "is missing");
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
    return messages;
  }
  if (!input->is_array() || input->empty()) bad_field("input", "expected a string or an array of items");
  for (size_t i = 0; i < input->size(); ++i) {
    Fields item((*input)[i], fmt::format("input[{}]", i));
    read_item(item, item.string("type").value_or("message"), messages);
  }
  return messages;
}

Json read_tools(const Json& list) {
  Json tools = Json::array();
  for (size_t i = 0; i < list.size(); ++i) {
    Fields tool(list[i], fmt::format("tools[{}]", i));
    const auto type = tool.string("type");
    if (!type || *type != "function") {
      bad_field(tool.path_of("type"), "{} is not supported here, only \"function\"",
                type ? text::json_quote(*type) : "nothing");
    }
    const auto name = tool.string("name");
    if (!name) bad_field(tool.path_of("name"), "is missing");
    Json function = {{"name", *name}};
    if (const auto description = tool.string("description")) function["description"] = *description;
    if (const Json* parameters = tool.object("parameters")) function["parameters"] = *parameters;
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

ToolChoice read_tool_choice(const Json& value) {
  using Kind = ToolChoice::Kind;
  if (value == "auto") return {Kind::Auto};
  if (value == "none") return {Kind::None};
  if (value == "required") return {Kind::Required};
  if (value.is_string())
    bad_field("tool_choice", "expected auto, none, required or an object that names a function");
  Fields fields(value, "tool_choice");
  fields.choice("type", {"function"});
  const auto name = fields.string("name");
  if (!name) bad_field("tool_choice.name", "is missing");
  fields.finish();
  return {Kind::Named, *name};
}

}  // namespace

ResponsesRequest read_responses(const Json& body, const Service& service) {
  Fields fields(body);
  ResponsesRequest request;
  ChatRequest& chat = request.chat;
  fields.string("model");
  chat.conversation.messages = read_input(fields.any("input"), fields.string("instructions"));
  for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
    if (fields.any(name)) bad_field(name, "this server keeps no state: send the whole conversation as input");
  }
  if (fields.boolean("background").value_or(false)) bad_field("background", "is not supported");
  if (const Json* tools = fields.array("tools")) chat.conversation.tools = read_tools(*tools);
  if (const Json* choice = fields.any("tool_choice")) chat.tool_choice = read_tool_choice(*choice);
  chat.parallel_calls = fields.boolean("parallel_tool_calls").value_or(true);
  if (const Json* text = fields.object("text")) {
    Fields inner(*text, "text");
    if (const Json* format = inner.object("format")) chat.form = read_form(*format, "text.format");
    inner.ignore({"verbosity"});
    inner.finish();
  }
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
    if (body.contains(name)) request.echo[name] = body[name];
  }
  return request;
}

}  // namespace sluice::server
