// First everything is checked and put right, then users' strings are marked, then the template runs.
#include "text/chat.h"

#include <utility>

#include "base/error.h"
#include "text/call_messages.h"
#include "text/exact_json.h"
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

/// An object, or the text of what is none: the model once wrote it, and may see that. JSON text stays beside
/// its object until the template's form is known (put_in_form).
void prepare_arguments(Json& call) {
  Json& arguments = call["arguments"];
  if (arguments.is_null()) arguments = Json::object();
  if (arguments.is_object()) return;
  if (!arguments.is_string()) arguments = dump_exact(arguments);
  const std::string text(trimmed(arguments.get_ref<const std::string&>()));
  const ExactJson exact(text);
  if (text.empty() || text == "null") {
    arguments = Json::object();  // clients which send nothing for no arguments are understood
  } else if (text.starts_with('{') && is_json(exact.text())) {
    arguments = exact.value();
    call["arguments_text"] = text;
  }
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
      if (!call->contains("type")) (*call)["type"] = "function";  // some templates join it to texts
      call = &(*call)["function"];
      here += ".function";
    }
    if (!call->is_object() || !call->contains("name") || !(*call)["name"].is_string())
      fail("{}: expected an object with a \"name\"", here);
    prepare_arguments(*call);
  }
}

/// OpenAI's forms of calls before there were tools.
void prepare_old_calls(Json& message, const std::string& where) {
  if (message["role"] == "function") {
    message["role"] = "tool";
    if (!message.contains("tool_call_id") && message.contains("name"))
      message["tool_call_id"] = message["name"];
  }
  const auto call = message.find("function_call");
  if (call == message.end()) return;
  if (call->is_null()) {
    message.erase(call);
    return;
  }
  if (!call->is_object() || !call->contains("name") || !(*call)["name"].is_string())
    fail("{}.function_call: expected an object with a \"name\"", where);
  Json calls = Json::array({{{"id", (*call)["name"]}, {"type", "function"}, {"function", *call}}});
  message.erase("function_call");
  if (!message.contains("tool_calls") || message["tool_calls"].is_null())
    message["tool_calls"] = std::move(calls);
}

/// What clients send, in one form.
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
    prepare_old_calls(message, where);
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

using Author = ControlTokens::Author;

void mark_string(std::string& text, const ControlTokens& control, PromptMarker& marker, Author author) {
  const std::vector<size_t> places = control.places_to_mark(text, author);
  if (!places.empty()) text = marker.mark(text, places);
}

/// Marks all strings inside, keys of objects too.
void mark_all(Json& json, const ControlTokens& control, PromptMarker& marker, Author author = Author::User) {
  if (json.is_string()) mark_string(json.get_ref<std::string&>(), control, marker, author);
  if (json.is_array())
    for (Json& item : json) mark_all(item, control, marker, author);
  if (!json.is_object()) return;
  bool keys_too = false;
  for (auto& [key, value] : json.get_ref<Json::object_t&>()) {
    mark_all(value, control, marker, author);
    keys_too = keys_too || !control.places_to_mark(key, author).empty();
  }
  if (!keys_too) return;
  Json renamed = Json::object();  // keys cannot be changed in place
  for (auto& [key, value] : json.get_ref<Json::object_t&>()) {
    std::string name = key;
    mark_string(name, control, marker, author);
    renamed[std::move(name)] = std::move(value);
  }
  json = std::move(renamed);
}

/// Takes from `places` those inside this tag.
void leave_tag(std::vector<size_t>& places, std::string_view content, std::string_view tag) {
  // A mark stands behind the first character of the name, which is '<'.
  std::erase_if(places, [&](size_t place) { return content.substr(place - 1).starts_with(tag); });
}

/// gpt-oss knows the efforts low, medium and high, and no answers without reasoning.
void name_known_effort(Json& arguments) {
  const auto said = arguments.find("reasoning_effort");
  const std::string effort = said != arguments.end() && said->is_string() ? said->get<std::string>() : "";
  const auto thinking = arguments.find("enable_thinking");
  const bool is_off = thinking != arguments.end() && *thinking == false;
  if (effort == "none" || effort == "minimal" || (effort.empty() && is_off))
    arguments["reasoning_effort"] = "low";
  if (effort == "xhigh" || effort == "max") arguments["reasoning_effort"] = "high";
}

/// A content that put_in_form has made a string or a list of one part.
std::string content_text(const Json& message) {
  const Json& content = message["content"];
  if (content.is_array()) return content.empty() ? "" : content.front().value("text", "");
  return content.is_string() ? content.get<std::string>() : "";
}
void set_content_text(Json& message, const std::string& text) {
  Json& content = message["content"];
  if (content.is_array() && !content.empty())
    content.front()["text"] = text;
  else
    content = text;
}

/// The prompt before an answer, whose reasoning may be open, closed or neither, with the answer's reasoning,
/// closed or not. Without any it only must not stay open where it is to be closed.
std::string with_reasoning(std::string prompt, const std::string& reasoning, bool closed,
                           const OutputFormat& format) {
  prompt.resize(std::string_view(prompt).find_last_not_of(kSpace) + 1);
  const bool was_closed = prompt.ends_with(format.think_close);
  if (reasoning.empty() && (was_closed || !prompt.ends_with(format.think_open))) return prompt;
  if (was_closed) prompt.resize(prompt.size() - format.think_close.size());
  if (!prompt.ends_with(format.think_open)) prompt += format.think_open;
  prompt += reasoning;
  if (closed) prompt += format.think_close;
  return prompt;
}

/// The last message must be one that can go on. Reasoning that stands in its content is taken out of there.
void prepare_continued(Json& messages, const OutputFormat& format) {
  Json& last = messages.back();
  const std::string where = fmt::format("messages[{}]", messages.size() - 1);
  if (last["role"] != "assistant") fail("{}: only a message of the assistant can be continued", where);
  if (last.contains("tool_calls")) fail("{}: a message with tool calls cannot be continued", where);
  const std::string content = last["content"].get<std::string>();
  if (!format.thinks || last.contains("reasoning_content") || !content.starts_with(format.think_open)) return;
  const size_t close = content.find(format.think_close);
  last["reasoning_content"] = content.substr(format.think_open.size(), close - format.think_open.size());
  if (close == std::string::npos) last["reasoning_content"] = content.substr(format.think_open.size());
  last["content"] = close == std::string::npos ? "" : content.substr(close + format.think_close.size());
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
      control_(std::move(control)),
      form_(form_of_template(template_, {{"bos_token", bos_}, {"eos_token", eos_}})) {
  if (knows_tools_ || format_.generic) return;
  const bool grouped = !format_.section_open.empty();
  call_shape_ = call_shape(template_, {{"bos_token", bos_}, {"eos_token", eos_}}, form_,
                           grouped ? format_.section_open : format_.call_open, format_.call_close);
  if (grouped && !call_shape_.empty()) call_shape_ += format_.section_close;
}

void ChatTemplate::mark_message(Json& message, PromptMarker& marker) const {
  const Json* said = message["content"].is_string() ? &message["content"] : nullptr;
  if (message["role"] != "assistant" || message.contains(form_.reasoning_key)) said = nullptr;
  const std::string content = said ? said->get<std::string>() : std::string();
  const bool splits = said != nullptr;
  const Author author = message["role"] == "assistant" ? Author::Model : Author::User;
  mark_all(message, control_, marker, author);
  if (!splits) return;
  std::vector<size_t> places = control_.places_to_mark(content, author);
  leave_tag(places, content, format_.think_open);
  leave_tag(places, content, format_.think_close);
  message["content"] = marker.mark(content, places);
}

ChatPrompt ChatTemplate::render(Conversation conversation, const jinja::RenderOptions& options) const {
  Json& messages = conversation.messages;
  Json& tools = conversation.tools;
  Json& arguments = conversation.template_arguments;
  prepare_messages(messages, knows_developer_);
  if (conversation.continue_last) prepare_continued(messages, format_);
  if (!tools.is_null() && !tools.is_array()) fail("tools: expected an array");
  if (format_.generic && !knows_tools_ && (!tools.empty() || !form_.shows_calls)) {
    for (Json& message : messages)
      if (message.contains("tool_calls"))
        for (Json& call : message["tool_calls"])
          (call.contains("function") ? call["function"] : call).erase("arguments_text");
    write_calls_as_text(messages, tools.empty() ? Json() : std::exchange(tools, nullptr), knows_system_);
  }
  put_in_form(form_, messages);
  if (tools.empty()) tools = nullptr;
  check_depth(tools, "tools");
  std::string how_to_call;
  if (!call_shape_.empty() && !tools.empty())
    how_to_call = add_tools(messages, std::exchange(tools, nullptr));
  if (arguments.is_null()) arguments = Json::object();
  if (!arguments.is_object()) fail("template arguments: expected an object");
  check_depth(arguments, "template arguments");
  if (format_.channels) name_known_effort(arguments);

  complete_tools(tools, form_.needs_description, form_.needs_parameters);
  if (format_.one_call_a_message) split_calls(messages);

  PromptMarker marker;
  if (!control_.empty()) {
    marker.avoid(source_);
    for (const Json* part : {&messages, &tools, &arguments})
      for_each_string(*part, [&](const std::string& text) { marker.avoid(text); });
    for (Json& message : messages) mark_message(message, marker);
    mark_all(tools, control_, marker);
    mark_all(arguments, control_, marker);
  }
  // Behind the marking: the tags of calls are tokens here.
  if (!how_to_call.empty()) set_content_text(messages.front(), content_text(messages.front()) + how_to_call);
  Json variables = std::move(arguments);
  variables["messages"] = std::move(messages);
  variables["tools"] = tools.is_null() && form_.tools_are_a_list ? Json::array() : std::move(tools);
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = conversation.add_generation_prompt;
  variables["bos_token"] = bos_;
  variables["eos_token"] = eos_;
  if (conversation.continue_last) return render_continued(std::move(variables), marker, options);
  std::string written;
  const bool plainly = write(variables, options, written);
  ChatPrompt out{marker.unmark(written), false, plainly};
  const auto& [text, breaks] = out.prompt;
  const bool is_users =
      !breaks.empty() && breaks.back() > text.rfind(format_.think_open);  // if there is that tag
  out.starts_in_thinking = conversation.add_generation_prompt && ends_in_thinking(format_, text) && !is_users;
  return out;
}

// Runs the template. Where it fails, and not of its own will, what it makes of schemas may be why: then it
// sees the tools in plain words, and the answer is true.
bool ChatTemplate::write(Json& variables, const jinja::RenderOptions& options, std::string& text) const {
  try {
    text = template_.render(variables, options);
    return false;
  } catch (const jinja::TemplateError& error) {
    Json& tools = variables["tools"];
    if (error.raised() || tools.empty()) throw;
    tools = tools_in_plain_words(tools);
    try {
      text = template_.render(variables, options);
    } catch (const jinja::TemplateError&) {
      throw jinja::TemplateError(error);
    }
    return true;
  }
}

// Describes tools at the end of the system message, which there is then in front, and returns what is to
// follow.
std::string ChatTemplate::add_tools(Json& messages, const Json& tools) const {
  const char* role = knows_system_ && !form_.system_in_user_message ? "system" : "user";
  if (messages.front()["role"] != "system") {
    Json first = {{"role", role}, {"content", ""}};
    if (form_.parts.contains(role)) first["content"] = Json::array({{{"type", "text"}, {"text", ""}}});
    messages.insert(messages.begin(), std::move(first));
  }
  const ToolsText text = describe_tools(tools, call_shape_);
  std::string content = content_text(messages.front());
  if (!content.empty()) content += "\n\n";
  set_content_text(messages.front(), content + text.tools);
  return text.how;
}

// The message is shown with a word at the end of what is to go on, and the prompt ends before that word.
// Where the template leaves something out (many show no reasoning), the prompt is what comes before any
// answer, and then the message's own words.
ChatPrompt ChatTemplate::render_continued(Json variables, const PromptMarker& marker,
                                          const jinja::RenderOptions& options) const {
  Json& messages = variables["messages"];
  Json& last = messages.back();
  const std::string content = content_text(last), reasoning = last.value(form_.reasoning_key, "");
  const bool thinking = content.empty() && !reasoning.empty();
  std::string end = "continued-here";
  const auto is_free = [&] {
    bool free = source_.find(end) == std::string::npos;
    for_each_string(variables, [&](const std::string& text) { free &= text.find(end) == std::string::npos; });
    return free;
  };
  for (int i = 0; !is_free(); ++i) end = fmt::format("continued-here-{}", i);
  if (thinking)
    last[form_.reasoning_key] = reasoning + end;
  else
    set_content_text(last, content + end);
  variables["add_generation_prompt"] = false;
  std::string text;
  const bool plainly = write(variables, options, text);
  const size_t place = text.rfind(end);
  if (place != std::string::npos) text.resize(place);
  if (place == std::string::npos || text.find(trimmed(reasoning)) == std::string::npos) {
    messages.erase(messages.size() - 1);
    variables["add_generation_prompt"] = true;
    text = template_.render(variables, options);
    if (format_.thinks && !format_.channels)
      text = with_reasoning(std::move(text), reasoning, !thinking, format_);
    text += content;
  }
  return {marker.unmark(text), thinking && format_.thinks, plainly};
}

}  // namespace sluice::text
