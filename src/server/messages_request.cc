#include "server/messages_request.h"

#include "text/json_text.h"

namespace sluice::server {

namespace {

// Claude Code begins its system prompt with a line that changes with every request. It says nothing to a
// model, and at the prompt's beginning it would keep every prefix from being found in the cache.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

std::string without_billing_header(std::string text) {
  if (!text.starts_with(kBillingHeader)) return text;
  const size_t end = text.find('\n');
  return end == std::string::npos ? "" : text.substr(end + 1);
}

std::string text_block(Fields& fields) {
  const auto text = fields.string("text");
  if (!text) bad_field(fields.path_of("text"), "is missing");
  return *text;
}

std::string type_of(Fields& fields) {
  const auto type = fields.string("type");
  if (!type) bad_field(fields.path_of("type"), "is missing");
  return *type;
}

[[noreturn]] void unknown_block(const Fields& fields, const std::string& type) {
  bad_field(fields.path_of("type"), "{} is not supported here: this server knows text alone",
            text::json_quote(type));
}

/// A string, or blocks of text.
std::string read_text(const Json& content, const std::string& path, bool is_system = false) {
  if (content.is_string())
    return is_system ? without_billing_header(content.get<std::string>()) : content.get<std::string>();
  if (!content.is_array())
    bad_field(path, "expected a string or an array of blocks, not {}", json_kind(content));
  std::string all;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields block(content[i], fmt::format("{}[{}]", path, i));
    const std::string type = type_of(block);
    if (type != "text") unknown_block(block, type);
    std::string text = text_block(block);
    if (is_system) text = without_billing_header(std::move(text));
    if (text.empty()) continue;
    if (!all.empty()) all += "\n";
    all += text;
  }
  return all;
}

Json tool_result(Fields& block) {
  const auto id = block.string("tool_use_id");
  if (!id) bad_field(block.path_of("tool_use_id"), "is missing");
  const Json* content = block.any("content");
  std::string text = content ? read_text(*content, block.path_of("content")) : "";
  if (block.boolean("is_error").value_or(false)) text = "Error: " + text;
  return {{"role", "tool"}, {"tool_call_id", *id}, {"content", std::move(text)}};
}

void add_user(const Json& content, const std::string& path, const std::string& role, Json& messages) {
  if (content.is_string()) {
    messages.push_back({{"role", role}, {"content", content}});
    return;
  }
  if (!content.is_array())
    bad_field(path, "expected a string or an array of blocks, not {}", json_kind(content));
  std::string text;
  bool any_text = false;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields block(content[i], fmt::format("{}[{}]", path, i));
    const std::string type = type_of(block);
    if (type == "tool_result") {
      messages.push_back(tool_result(block));
    } else if (type == "text") {
      text += (any_text ? "\n" : "") + text_block(block);
      any_text = true;
    } else {
      unknown_block(block, type);
    }
  }
  if (any_text || content.empty()) messages.push_back({{"role", role}, {"content", std::move(text)}});
}

void add_assistant(const Json& content, const std::string& path, Json& messages) {
  Json message = {{"role", "assistant"}, {"content", ""}};
  if (content.is_string()) {
    message["content"] = content;
    messages.push_back(std::move(message));
    return;
  }
  if (!content.is_array())
    bad_field(path, "expected a string or an array of blocks, not {}", json_kind(content));
  std::string text, thinking;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields block(content[i], fmt::format("{}[{}]", path, i));
    const std::string type = type_of(block);
    if (type == "text") {
      text += text_block(block);
    } else if (type == "thinking") {
      thinking += block.string("thinking").value_or("");
    } else if (type == "tool_use") {
      const auto id = block.string("id"), name = block.string("name");
      if (!id) bad_field(block.path_of("id"), "is missing");
      if (!name) bad_field(block.path_of("name"), "is missing");
      const Json* input = block.object("input");
      message["tool_calls"].push_back(
          {{"id", *id},
           {"type", "function"},
           {"function", {{"name", *name}, {"arguments", input ? *input : Json::object()}}}});
    } else if (type != "redacted_thinking") {
      unknown_block(block, type);
    }
  }
  message["content"] = std::move(text);
  if (!thinking.empty()) message["reasoning_content"] = std::move(thinking);
  messages.push_back(std::move(message));
}

Json read_tools(const Json& list) {
  Json tools = Json::array();
  for (size_t i = 0; i < list.size(); ++i) {
    Fields tool(list[i], fmt::format("tools[{}]", i));
    const std::string type = tool.string("type").value_or("custom");
    if (type != "custom")
      bad_field(tool.path_of("type"), "{} runs at Anthropic, not here", text::json_quote(type));
    const auto name = tool.string("name");
    if (!name) bad_field(tool.path_of("name"), "is missing");
    Json function = {{"name", *name}};
    if (const auto description = tool.string("description")) function["description"] = *description;
    const Json* schema = tool.object("input_schema");
    if (!schema) bad_field(tool.path_of("input_schema"), "is missing");
    function["parameters"] = *schema;
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

void read_tool_choice(const Json& value, ChatRequest& request) {
  Fields fields(value, "tool_choice");
  using Kind = ToolChoice::Kind;
  const auto type = fields.choice("type", {"auto", "any", "tool", "none"});
  if (!type) bad_field("tool_choice.type", "is missing");
  if (*type == "any") request.tool_choice = {Kind::Required};
  if (*type == "none") request.tool_choice = {Kind::None};
  if (*type == "tool") {
    const auto name = fields.string("name");
    if (!name) bad_field("tool_choice.name", "is missing");
    request.tool_choice = {Kind::Named, *name};
  }
  request.parallel_calls = !fields.boolean("disable_parallel_tool_use").value_or(false);
}

void read_conversation(Fields& fields, ChatRequest& request) {
  Json messages = Json::array();
  if (const Json* system = fields.any("system")) {
    std::string text = read_text(*system, "system", true);
    if (!text.empty()) messages.push_back({{"role", "system"}, {"content", std::move(text)}});
  }
  const Json* list = fields.array("messages");
  if (!list || list->empty()) bad_field("messages", "expected an array of at least one message");
  for (size_t i = 0; i < list->size(); ++i) {
    Fields message((*list)[i], fmt::format("messages[{}]", i));
    const auto role = message.string("role");
    const Json* content = message.any("content");
    const std::string path = message.path_of("content");
    if (!role) bad_field(message.path_of("role"), "is missing");
    if (!content) bad_field(path, "is missing");
    if (*role == "assistant")
      add_assistant(*content, path, messages);
    else if (*role == "user" || *role == "system")
      add_user(*content, path, *role, messages);
    else
      bad_field(message.path_of("role"), "{}, expected user or assistant", text::json_quote(*role));
  }
  request.conversation.messages = std::move(messages);
  if (const Json* tools = fields.array("tools")) request.conversation.tools = read_tools(*tools);
  if (const Json* choice = fields.object("tool_choice")) read_tool_choice(*choice, request);
  if (const Json* thinking = fields.object("thinking")) {
    Fields inner(*thinking, "thinking");
    request.read_thinking_type(inner);
  }
  request.set_thinking(false);  // in this API nobody gets thinking who has not asked for it
}

}  // namespace

ChatRequest read_messages(const Json& body, const Service& service) {
  Fields fields(body);
  ChatRequest request;
  read_conversation(fields, request);
  fields.string("model");
  const auto tokens = fields.integer("max_tokens", 0, INT32_MAX);
  if (!tokens) bad_field("max_tokens", "is missing");
  request.engine.max_tokens = *tokens;
  read_sampling(fields, service, request.engine.sampling);
  read_stops(fields, "stop_sequences", request.engine);
  request.stream = fields.boolean("stream").value_or(false);
  const Json* format = fields.object("output_format");
  std::string path = "output_format";
  if (const Json* config = fields.object("output_config")) {
    Fields inner(*config, "output_config");
    if (const Json* inside = inner.object("format")) format = inside, path = "output_config.format";
  }
  if (format) request.form = read_form(*format, path);
  return request;
}

text::Conversation read_messages_conversation(const Json& body) {
  Fields fields(body);
  ChatRequest request;
  read_conversation(fields, request);
  if (request.tool_choice.kind == ToolChoice::Kind::None) request.conversation.tools = nullptr;
  return std::move(request.conversation);
}

}  // namespace sluice::server
