#include "server/content.h"

#include <algorithm>

#include "server/fields.h"
#include "text/exact_json.h"
#include "text/json_text.h"

namespace sluice::server {

namespace {

constexpr std::string_view kTexts[] = {"text", "input_text", "output_text", "summary_text", "reasoning_text"};
constexpr std::string_view kMedia[] = {"image",
                                       "image_url",
                                       "input_image",
                                       "audio",
                                       "audio_url",
                                       "input_audio",
                                       "video",
                                       "video_url",
                                       "input_video",
                                       "file",
                                       "input_file",
                                       "document",
                                       "container_upload",
                                       "computer_screenshot"};

template <size_t N>
bool is_one_of(std::string_view type, const std::string_view (&list)[N]) {
  return std::find(std::begin(list), std::end(list), type) != std::end(list);
}

void add(std::string& all, std::string_view text, std::string_view separator) {
  if (text.empty()) return;
  if (!all.empty()) all += separator;
  all += text;
}

std::string string_of(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

/// The text of a document; nothing: it has none that can be read here.
std::optional<std::string> document_text(const Json& part, const std::string& path, LeftOut& left_out) {
  const auto source = part.find("source");
  if (source == part.end() || !source->is_object()) return {};
  std::string text = string_of(part, "title");
  add(text, string_of(part, "context"), "\n");
  const std::string type = string_of(*source, "type");
  if (type == "text") {
    add(text, string_of(*source, "data"), "\n");
  } else if (type == "content" && source->contains("content")) {
    const ContentRule rule{.from_user = false, .separator = "\n"};
    add(text, read_content((*source)["content"], path + ".source.content", rule, left_out).text, "\n");
  } else {
    return {};
  }
  return text;
}

std::string search_result_text(const Json& part, const std::string& path, LeftOut& left_out) {
  std::string text = string_of(part, "title");
  add(text, string_of(part, "source"), "\n");
  if (const auto content = part.find("content"); content != part.end()) {
    const ContentRule rule{.from_user = false, .separator = "\n"};
    add(text, read_content(*content, path + ".content", rule, left_out).text, "\n");
  }
  return text;
}

/// Whether something of a list is a part, as the APIs have them: an object that says its type, or has a text.
bool is_part(const Json& part) {
  if (!part.is_object()) return false;
  const auto type = part.find("type");
  if (type != part.end() && !type->is_null()) return type->is_string() && *type != "";
  return part.contains("text");
}

}  // namespace

void read_part(const Json& part, const std::string& path, const ContentRule& rule, Content& out,
               LeftOut& left_out) {
  if (part.is_string()) return add(out.text, part.get_ref<const std::string&>(), rule.separator);
  if (!rule.from_user && !is_part(part))  // a list that a tool gave back, say
    return add(out.text, part.is_null() ? "" : text::dump_exact(part), rule.separator);
  if (!part.is_object()) bad_field(path, "expected an object, not {}", json_kind(part));
  Fields fields(part, path);
  const std::string type = fields.string("type").value_or(part.contains("text") ? "text" : "");
  if (type.empty()) bad_field(path + ".type", "is missing");
  if (is_one_of(type, kTexts)) {
    if (!rule.from_user && !part.value("text", Json()).is_string()) {
      left_out.push_back(path + ": a part without its text");
      return;
    }
    const auto text = fields.string("text");
    if (!text) bad_field(path + ".text", "is missing");
    return add(out.text, *text, rule.separator);
  }
  if (type == "refusal") return add(out.text, string_of(part, "refusal"), rule.separator);
  if (type == "thinking") return add(out.thinking, string_of(part, "thinking"), "");
  if (type == "reasoning") return add(out.thinking, string_of(part, "text"), "");
  if (type == "redacted_thinking") return;  // nobody but its maker can read it
  if (type == "search_result") return add(out.text, search_result_text(part, path, left_out), rule.separator);
  if (type == "tool_reference")
    return add(out.text, "[tool " + string_of(part, "tool_name") + "]", rule.separator);
  if (type == "document") {
    if (const auto text = document_text(part, path, left_out)) return add(out.text, *text, rule.separator);
  }
  if (is_one_of(type, kMedia)) {
    if (rule.from_user)
      bad_field(path + ".type", "{} is not supported here: this server knows text alone",
                text::json_quote(type));
    left_out.push_back(fmt::format("{}: {}, only text can be read", path, text::json_quote(type)));
    return add(out.text, fmt::format("[{} left out: only text can be read here]", type), rule.separator);
  }
  left_out.push_back(fmt::format("{}: a part of type {}", path, text::json_quote(type)));
  add(out.text, string_of(part, "text"), rule.separator);
}

Content read_content(const Json& content, const std::string& path, const ContentRule& rule,
                     LeftOut& left_out) {
  if (content.is_string()) return {content.get<std::string>(), ""};
  if (content.is_null()) return {};
  if (!content.is_array()) {
    if (rule.from_user) bad_field(path, "expected a string or an array of parts, not {}", json_kind(content));
    return {text::dump_exact(content), ""};  // what a tool gave back, say
  }
  Content out;
  for (size_t i = 0; i < content.size(); ++i)
    read_part(content[i], fmt::format("{}[{}]", path, i), rule, out, left_out);
  return out;
}

}  // namespace sluice::server
