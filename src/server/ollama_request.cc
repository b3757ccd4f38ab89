#include "server/ollama_request.h"

#include <deque>

namespace sluice::server {

namespace {

/// "json", or a schema.
Json response_format(const Json& format) {
  if (format.is_object())
    return {{"type", "json_schema"}, {"json_schema", {{"name", "answer"}, {"schema", format}}}};
  if (format.is_string() && format == "json") return {{"type", "json_object"}};
  if (format.is_string() && format == "") return nullptr;
  bad_field("format", "expected json or a schema");
}

/// Text, with a part for each picture, which whoever reads the messages knows what to do with.
Json content_of(Fields& fields) {
  std::string text = fields.string("content").value_or("");
  const Json* images = fields.array("images");
  if (images == nullptr || images->empty()) return text;
  Json parts = {{{"type", "text"}, {"text", std::move(text)}}};
  for (size_t i = 0; i < images->size(); ++i)
    parts.push_back({{"type", "image_url"}, {"image_url", {{"url", "data:image/png;base64,"}}}});
  return parts;
}

/// Calls have no ids, or ids that results need not repeat: a result is of the first call of its tool that has
/// none.
class CallIds {
 public:
  std::string add(const std::string& name, const std::string& given) {
    const std::string id = given.empty() ? fmt::format("call_{}", next_++) : given;
    waiting_.push_back({name, id});
    return id;
  }
  std::string take(const std::string& name, const std::string& given) {
    for (auto call = waiting_.begin(); call != waiting_.end(); ++call) {
      if (given.empty() ? !name.empty() && call->name != name : call->id != given) continue;
      std::string id = std::move(call->id);
      waiting_.erase(call);
      return id;
    }
    return given.empty() ? fmt::format("call_{}", next_++) : given;
  }

 private:
  struct Waiting {
    std::string name, id;
  };
  std::deque<Waiting> waiting_;
  int64_t next_ = 0;
};

Json message_of(const Json& given, const std::string& path, CallIds& ids) {
  if (!given.is_object()) bad_field(path, "expected an object, not {}", json_kind(given));
  Fields fields(given, path);
  const std::string role = fields.string("role").value_or("user");
  Json message = {{"role", role}, {"content", content_of(fields)}};
  if (auto thinking = fields.string("thinking"); thinking && !thinking->empty())
    message["reasoning_content"] = std::move(*thinking);
  if (const Json* calls = fields.array("tool_calls")) {
    for (size_t i = 0; i < calls->size(); ++i) {
      const std::string call_path = fmt::format("{}.tool_calls[{}]", path, i);
      if (!(*calls)[i].is_object())
        bad_field(call_path, "expected an object, not {}", json_kind((*calls)[i]));
      Fields call((*calls)[i], call_path);
      const Json* function = call.object("function");
      if (function == nullptr) bad_field(call.path_of("function"), "is missing");
      Fields inner(*function, call.path_of("function"));
      const std::string name = inner.string("name").value_or("");
      const Json* arguments = inner.any("arguments");
      message["tool_calls"].push_back(
          {{"id", ids.add(name, call.string("id").value_or(""))},
           {"type", "function"},
           {"function", {{"name", name}, {"arguments", arguments ? *arguments : Json::object()}}}});
    }
  }
  if (role == "tool") {
    const std::string name = fields.string("tool_name").value_or(fields.string("name").value_or(""));
    message["tool_call_id"] = ids.take(name, fields.string("tool_call_id").value_or(""));
    if (!name.empty()) message["name"] = name;
  }
  return message;
}

/// Fields of both endpoints. What is read here is left out of `body`, the rest is as in chat completions.
void read_common(Json& body, OllamaRequest& request) {
  static constexpr const char* kOfTheServer[] = {"keep_alive", "truncate", "shift", "logprobs",
                                                 "top_logprobs"};
  Json& chat = request.chat;
  for (const char* name : kOfTheServer) {
    const auto found = body.find(name);
    if (found == body.end()) continue;
    if (std::string_view(name).ends_with("logprobs") && *found != false && *found != 0 && !found->is_null())
      request.left_out.push_back(fmt::format("{}: chat completions have them", name));
    body.erase(name);
  }
  if (const auto format = body.find("format"); format != body.end()) {
    if (!format->is_null())
      if (Json form = response_format(*format); !form.is_null()) chat["response_format"] = std::move(form);
    body.erase("format");
  }
  if (const auto options = body.find("options"); options != body.end() && options->is_object()) {
    // The context is the server's; what a client guesses of it is no reason to send it away.
    for (const char* name : {"num_ctx", "num_keep", "penalize_newline", "tfs_z"}) options->erase(name);
  }
  const auto stream = body.find("stream");
  chat["stream"] = stream == body.end() || stream->is_null() ? Json(true) : *stream;
  body.erase("stream");
  for (auto& [name, value] : body.items())
    if (!chat.contains(name)) chat[name] = std::move(value);
}

Json checked(const Json& body) {
  if (!body.is_object()) throw ApiError(400, fmt::format("expected an object, not {}", json_kind(body)));
  return body;
}

}  // namespace

OllamaRequest read_ollama_chat(const Json& given) {
  Json body = checked(given);
  OllamaRequest request;
  Fields fields(given);
  CallIds ids;
  Json messages = Json::array();
  if (const Json* list = fields.array("messages"))
    for (size_t i = 0; i < list->size(); ++i)
      messages.push_back(message_of((*list)[i], fmt::format("messages[{}]", i), ids));
  request.empty = messages.empty();
  request.chat["messages"] = std::move(messages);
  read_common(body, request);
  return request;
}

OllamaRequest read_ollama_generate(const Json& given) {
  Json body = checked(given);
  OllamaRequest request;
  Fields fields(given);
  request.prompt = fields.string("prompt").value_or("");
  request.empty = request.prompt.empty();
  request.raw = fields.boolean("raw").value_or(false);
  if (!fields.string("suffix").value_or("").empty())
    bad_field("suffix", "is not supported: there is no infill");
  if (!fields.string("template").value_or("").empty())
    bad_field("template", "is not supported; raw: true takes the prompt as it is");
  if (const Json* context = fields.any("context"); context != nullptr && !context->empty())
    request.left_out.emplace_back("context: /api/chat keeps a conversation");
  Json messages = Json::array();
  if (const auto system = fields.string("system"); system && !system->empty() && !request.raw)
    messages.push_back({{"role", "system"}, {"content", *system}});
  Json asked = {{"content", request.prompt}};
  if (const Json* images = fields.array("images")) asked["images"] = *images;
  CallIds ids;
  messages.push_back(message_of(asked, "prompt", ids));
  request.chat["messages"] = std::move(messages);
  for (const char* name : {"prompt", "suffix", "template", "context", "system", "images", "raw"})
    body.erase(name);
  read_common(body, request);
  return request;
}

}  // namespace sluice::server
