#include "server/messages_request.h"

#include "server/tool_list.h"
#include "text/exact_json.h"
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

bool is_block(const Json& block, const char* type) {
  return block.is_object() && block.value("type", Json()) == type;
}

constexpr ContentRule kSystemRule{.from_user = true, .separator = "\n"};
constexpr ContentRule kUserBlocks{.from_user = true, .separator = "\n"};
constexpr ContentRule kHistoryBlocks{.from_user = false, .separator = "\n"};
constexpr ContentRule kAnswerRule{.from_user = false, .separator = ""};

/// A string, or blocks of text, without the line that changes with every request.
std::string read_system(const Json& content, LeftOut& left_out) {
  if (!content.is_array())
    return without_billing_header(read_content(content, "system", kSystemRule, left_out).text);
  std::string all;
  for (size_t i = 0; i < content.size(); ++i) {
    Content block;
    read_part(content[i], fmt::format("system[{}]", i), kSystemRule, block, left_out);
    const std::string text = without_billing_header(std::move(block.text));
    if (!all.empty() && !text.empty()) all += "\n";
    all += text;
  }
  return all;
}

Json tool_result(Fields& block, LeftOut& left_out) {
  const auto id = block.string("tool_use_id");
  if (!id) bad_field(block.path_of("tool_use_id"), "is missing");
  const Json* content = block.any("content");
  std::string text =
      content ? read_content(*content, block.path_of("content"), kHistoryBlocks, left_out).text : "";
  if (block.boolean("is_error").value_or(false)) text = "Error: " + text;
  return {{"role", "tool"}, {"tool_call_id", *id}, {"content", std::move(text)}};
}

void add_user(const Json& content, const std::string& path, const std::string& role, ChatRequest& request) {
  Json& messages = request.conversation.messages;
  if (!content.is_array()) {
    messages.push_back(
        {{"role", role}, {"content", read_content(content, path, kUserBlocks, request.left_out).text}});
    return;
  }
  Content said;
  bool results = false;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string where = fmt::format("{}[{}]", path, i);
    if (is_block(content[i], "tool_result")) {
      Fields block(content[i], where);
      messages.push_back(tool_result(block, request.left_out));
      results = true;
    } else {
      read_part(content[i], where, kUserBlocks, said, request.left_out);
    }
  }
  if (!said.text.empty() || !results) messages.push_back({{"role", role}, {"content", std::move(said.text)}});
}

void add_assistant(const Json& content, const std::string& path, ChatRequest& request) {
  Json message = {{"role", "assistant"}, {"content", ""}};
  Content said;
  if (!content.is_array()) said = read_content(content, path, kAnswerRule, request.left_out);
  for (size_t i = 0; content.is_array() && i < content.size(); ++i) {
    const std::string where = fmt::format("{}[{}]", path, i);
    if (!is_block(content[i], "tool_use")) {
      read_part(content[i], where, kAnswerRule, said, request.left_out);
      continue;
    }
    Fields block(content[i], where);
    const auto id = block.string("id"), name = block.string("name");
    if (!id) bad_field(block.path_of("id"), "is missing");
    if (!name) bad_field(block.path_of("name"), "is missing");
    const Json* input = block.any("input");  // the template's side knows what to do with no object
    Json arguments = !input ? Json::object() : input->is_object() ? *input : Json(text::dump_exact(*input));
    message["tool_calls"].push_back({{"id", *id},
                                     {"type", "function"},
                                     {"function", {{"name", *name}, {"arguments", std::move(arguments)}}}});
  }
  message["content"] = std::move(said.text);
  if (!said.thinking.empty()) message["reasoning_content"] = std::move(said.thinking);
  request.conversation.messages.push_back(std::move(message));
}

/// This server keeps nothing between requests: a field that says where a conversation is cannot be passed
/// over. Its error is what makes Anthropic's clients send the whole conversation instead.
void refuse_threads(Fields& fields) {
  if (fields.any("thread")) {
    ApiError error(400, "thread: this server keeps no conversations: send all messages", "thread");
    error.more = {{"details", {{"error_code", "thread_unsupported_request"}, {"unsupported", {"thread"}}}}};
    throw ApiError(error);
  }
  for (const char* name : {"previous_message_id", "previous_response_id", "conversation", "conversation_id"})
    if (fields.any(name)) bad_field(name, "this server keeps no conversations: send all messages");
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
  refuse_threads(fields);
  Json& messages = request.conversation.messages = Json::array();
  if (const Json* system = fields.any("system")) {
    std::string text = read_system(*system, request.left_out);
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
      add_assistant(*content, path, request);
    else if (*role == "user" || *role == "system")
      add_user(*content, path, *role, request);
    else
      bad_field(message.path_of("role"), "{}, expected user or assistant", text::json_quote(*role));
  }
  // In this API an answer that has begun goes on.
  const Json& last = messages.back();
  request.conversation.continue_last =
      last["role"] == "assistant" && !last.contains("tool_calls") && list->back()["role"] == "assistant";
  if (const Json* tools = fields.array("tools"))
    request.conversation.tools = anthropic_tools(*tools, request.left_out);
  if (const Json* choice = fields.object("tool_choice")) read_tool_choice(*choice, request);
  if (const Json* thinking = fields.object("thinking")) {
    Fields inner(*thinking, "thinking");
    request.read_thinking_type(inner);
  }
  request.set_thinking(false);  // in this API nobody gets thinking who has not asked for it
  if (const Json* config = fields.object("output_config")) {
    Fields inner(*config, "output_config");
    request.read_effort(inner, "effort");
  }
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
  fields.ignore({"metadata", "service_tier", "betas", "anthropic_version"});
  for (const std::string& name : fields.unread()) request.left_out.push_back(name + ": not known here");
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
