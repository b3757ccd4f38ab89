// First everything is checked and put right, then users' strings are marked, then the template runs.
#include "text/chat.h"

#include <utility>

#include "base/error.h"
#include "text/call_messages.h"
#include "text/json_text.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;

/// Throws Error when arrays and objects are nested deeper than kJsonDepth: what follows uses the stack.
void check_depth(const Json& json, const std::string& where, int depth = 0) {
  if (depth > kJsonDepth) fail("{}: nested deeper than {}", where, kJsonDepth);
  if (!json.is_structured()) return;
  for (const Json& item : json) check_depth(item, where, depth + 1);
}

/// The text of a list of parts like {"type": "text", "text": ...}.
std::string joined_text(const Json& parts, const std::string& where) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& part = parts[i];
    const bool is_text = part.is_object() && part.contains("text") && part["text"].is_string();
    if (part.is_object() && part.contains("type") && part["type"] != "text")
      fail("{}[{}]: type {}, expected \"text\"", where, i,
           part["type"].dump(-1, ' ', false, Json::error_handler_t::replace));
    if (!is_text && !part.is_string())
      fail("{}[{}]: expected {{\"type\": \"text\", \"text\": ...}}", where, i);
    out += is_text ? part["text"].get_ref<const std::string&>() : part.get_ref<const std::string&>();
  }
  return out;
}

void prepare_content(Json& message, const std::string& where) {
  Json& content = message["content"];
  if (content.is_null()) content = "";
  if (content.is_array()) content = joined_text(content, where + ".content");
  if (!content.is_string()) fail("{}.content: expected a string, a list of texts or null", where);
}

void prepare_arguments(Json& call, const std::string& where) {
  Json& arguments = call["arguments"];
  if (arguments.is_string()) {
    const std::string_view text = trimmed(arguments.get_ref<const std::string&>());
    // An object, so that clients which send nothing for no arguments are understood.
    Json parsed = text.empty() ? Json::object() : is_json(text) ? Json::parse(text) : Json();
    if (!parsed.is_object()) fail("{}: expected a JSON object in the string", where);
    arguments = std::move(parsed);
  }
  if (arguments.is_null()) arguments = Json::object();
  if (!arguments.is_object()) fail("{}: expected an object, or a string with a JSON object in it", where);
}

void prepare_calls(Json& message, const std::string& where) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  if (calls->is_null() || (calls->is_array() && calls->empty())) {
    message.erase("tool_calls");  // some templates only ask whether it is there
    return;
  }
  if (!calls->is_array()) fail("{}.tool_calls: expected an array", where);
  for (size_t i = 0; i < calls->size(); ++i) {
    Json* call = &(*calls)[i];
    std::string here = fmt::format("{}.tool_calls[{}]", where, i);
    if (call->is_object() && call->contains("function")) {
      call = &(*call)["function"];
      here += ".function";
    }
    if (!call->is_object() || !call->contains("name") || !(*call)["name"].is_string())
      fail("{}: expected an object with a \"name\"", here);
    prepare_arguments(*call, here + ".arguments");
  }
}

/// What clients send, put as templates expect it.
void prepare_messages(Json& messages, bool knows_developer) {
  if (!messages.is_array() || messages.empty()) fail("messages: expected an array with at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    Json& message = messages[i];
    const std::string where = fmt::format("messages[{}]", i);
    check_depth(message, where);
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string())
      fail("{}: expected an object with a \"role\"", where);
    if (message["role"] == "developer" && !knows_developer) message["role"] = "system";
    prepare_content(message, where);
    prepare_calls(message, where);
    const auto reasoning = message.find("reasoning_content");
    if (reasoning == message.end() || reasoning->is_string()) continue;
    if (!reasoning->is_null()) fail("{}.reasoning_content: expected a string or null", where);
    message.erase(reasoning);
  }
}

template <typename Visit>
void for_each_string(const Json& json, const Visit& visit) {
  if (json.is_string()) visit(json.get_ref<const std::string&>());
  if (json.is_array())
    for (const Json& item : json) for_each_string(item, visit);
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      visit(key);
      for_each_string(value, visit);
    }
  }
}

void mark_string(std::string& text, const ControlTokens& control, PromptMarker& marker) {
  const std::vector<size_t> places = control.places_to_mark(text);
  if (!places.empty()) text = marker.mark(text, places);
}

/// Marks all strings inside, keys of objects too.
void mark_all(Json& json, const ControlTokens& control, PromptMarker& marker) {
  if (json.is_string()) mark_string(json.get_ref<std::string&>(), control, marker);
  if (json.is_array())
    for (Json& item : json) mark_all(item, control, marker);
  if (!json.is_object()) return;
  bool keys_too = false;
  for (auto& [key, value] : json.get_ref<Json::object_t&>()) {
    mark_all(value, control, marker);
    keys_too = keys_too || !control.places_to_mark(key).empty();
  }
  if (!keys_too) return;
  Json renamed = Json::object();  // keys cannot be changed in place
  for (auto& [key, value] : json.get_ref<Json::object_t&>()) {
    std::string name = key;
    mark_string(name, control, marker);
    renamed[std::move(name)] = std::move(value);
  }
  json = std::move(renamed);
}

/// Takes from `places` those inside this tag.
void leave_tag(std::vector<size_t>& places, std::string_view content, std::string_view tag) {
  // A mark stands behind the first character of the name, which is '<'.
  std::erase_if(places, [&](size_t place) { return content.substr(place - 1).starts_with(tag); });
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string bos, std::string eos, ControlTokens control)
    : template_(jinja::Template::parse(source)),
      format_(output_format_of_template(source)),
      source_(source),
      knows_tools_(source.find("tools") != std::string_view::npos),
      knows_system_(source.find("system") != std::string_view::npos),
      knows_developer_(source.find("developer") != std::string_view::npos),
      bos_(std::move(bos)),
      eos_(std::move(eos)),
      control_(std::move(control)) {}

void ChatTemplate::mark_message(Json& message, PromptMarker& marker) const {
  const bool splits = message["role"] == "assistant" && !message.contains("reasoning_content");
  const std::string content = splits ? message["content"].get<std::string>() : std::string();
  mark_all(message, control_, marker);
  if (!splits) return;
  std::vector<size_t> places = control_.places_to_mark(content);
  leave_tag(places, content, kThinkOpen);
  leave_tag(places, content, kThinkClose);
  message["content"] = marker.mark(content, places);
}

ChatPrompt ChatTemplate::render(Conversation conversation, const jinja::RenderOptions& options) const {
  Json& messages = conversation.messages;
  Json& tools = conversation.tools;
  Json& arguments = conversation.template_arguments;
  prepare_messages(messages, knows_developer_);
  if (!tools.is_null() && !tools.is_array()) fail("tools: expected an array");
  if (tools.empty()) tools = nullptr;
  check_depth(tools, "tools");
  if (arguments.is_null()) arguments = Json::object();
  if (!arguments.is_object()) fail("template arguments: expected an object");
  check_depth(arguments, "template arguments");

  complete_tools(tools, source_.find(".description") != std::string::npos,
                 source_.find(".parameters") != std::string::npos);
  if (format_.one_call_a_message) split_calls(messages);
  if (format_.generic && !knows_tools_)
    write_calls_as_text(messages, std::exchange(tools, nullptr), knows_system_);

  PromptMarker marker;
  if (!control_.empty()) {
    marker.avoid(source_);
    for (const Json* part : {&messages, &tools, &arguments})
      for_each_string(*part, [&](const std::string& text) { marker.avoid(text); });
    for (Json& message : messages) mark_message(message, marker);
    mark_all(tools, control_, marker);
    mark_all(arguments, control_, marker);
  }
  Json variables = std::move(arguments);
  variables["messages"] = std::move(messages);
  variables["tools"] = std::move(tools);
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = conversation.add_generation_prompt;
  variables["bos_token"] = bos_;
  variables["eos_token"] = eos_;
  ChatPrompt out{marker.unmark(template_.render(variables, options)), false};
  const auto& [text, breaks] = out.prompt;
  const bool is_users = !breaks.empty() && breaks.back() > text.rfind(kThinkOpen);  // if there is that tag
  out.starts_in_thinking = conversation.add_generation_prompt && ends_in_thinking(format_, text) && !is_users;
  return out;
}

}  // namespace sluice::text
