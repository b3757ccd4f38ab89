// POST /v1/chat/completions: OpenAI's chat completions, with the fields that other servers of this kind have
// (reasoning_content, chat_template_kwargs, top_k, min_p, timings, ...).
#include "server/answer.h"
#include "server/chat_request.h"
#include "server/endpoints.h"

namespace sluice::server {

namespace {

constexpr int64_t kMostChoices = 64;

struct ChatOptions {
  bool include_usage = false;
};

ToolChoice read_tool_choice(const Json& value) {
  using Kind = ToolChoice::Kind;
  if (value.is_string()) {
    const auto& name = value.get_ref<const std::string&>();
    if (name == "auto") return {Kind::Auto};
    if (name == "none") return {Kind::None};
    if (name == "required" || name == "any") return {Kind::Required};
    bad_field("tool_choice", "expected auto, none, required or an object that names a function");
  }
  Fields fields(value, "tool_choice");
  fields.choice("type", {"function"});
  const Json* function = fields.object("function");
  if (!function) bad_field("tool_choice.function", "is missing");
  fields.finish();
  Fields inner(*function, "tool_choice.function");
  const auto name = inner.string("name");
  if (!name) bad_field("tool_choice.function.name", "is missing");
  inner.finish();
  return {Kind::Named, *name};
}

/// A template passes over a role that it does not know, and nobody would notice.
void check_roles(const Json& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    Fields message(messages[i], fmt::format("messages[{}]", i));
    const auto role =
        message.choice("role", {"system", "developer", "user", "assistant", "tool", "function"});
    if (!role) bad_field(message.path_of("role"), "is missing");
    const bool asks = *role == "user" || *role == "system" || *role == "developer";
    if (asks && !message.any("content")) bad_field(message.path_of("content"), "is missing");
  }
}

/// Other servers call an earlier answer's reasoning_content just reasoning.
void rename_reasoning(Json& messages) {
  for (Json& message : messages) {
    if (!message.is_object() || !message.contains("reasoning") || message.contains("reasoning_content"))
      continue;
    if (message["reasoning"].is_string()) message["reasoning_content"] = message["reasoning"];
  }
}

void read_effort(Fields& fields, const char* name, ChatRequest& request) {
  const auto effort = fields.choice(name, {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
  if (!effort) return;
  request.set_thinking(*effort != "none");
  Json& arguments = request.conversation.template_arguments;
  if (*effort != "none" && !arguments.contains("reasoning_effort")) arguments["reasoning_effort"] = *effort;
}

void read_thinking(Fields& fields, ChatRequest& request) {
  if (const Json* kwargs = fields.object("chat_template_kwargs"))
    request.conversation.template_arguments = *kwargs;
  if (const auto on = fields.boolean("enable_thinking")) request.set_thinking(*on);
  if (const Json* thinking = fields.object("thinking")) {
    Fields inner(*thinking, "thinking");
    request.read_thinking_type(inner);
  }
  for (const char* name : {"thinking_budget_tokens", "thinking_budget"})
    if (const auto tokens = fields.integer(name, -1, INT32_MAX)) request.thinking_budget = *tokens;
  if (const Json* think = fields.any("think"); think && think->is_boolean())
    request.set_thinking(think->get<bool>());
  else
    read_effort(fields, "think", request);
  if (const Json* reasoning = fields.object("reasoning")) {
    Fields inner(*reasoning, "reasoning");
    if (const auto on = inner.boolean("enabled")) request.set_thinking(*on);
    read_effort(inner, "effort", request);
    if (const auto tokens = inner.integer("max_tokens", 0, INT32_MAX)) request.thinking_budget = *tokens;
  }
  read_effort(fields, "reasoning_effort", request);
}

void read_logprobs(Fields& fields, engine::Request& request) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, engine::Request::kMostTopLogprobs);
  if (top.value_or(0) > 0 && !wanted) bad_field("top_logprobs", "needs logprobs to be true");
  if (wanted) request.top_logprobs = static_cast<int32_t>(top.value_or(0));
}

/// Predicted outputs: {"type": "content", "content": a text, or parts of it}.
void read_prediction(Fields& fields, const Service& service, engine::Request& request) {
  const Json* prediction = fields.object("prediction");
  if (!prediction) return;
  Fields inner(*prediction, "prediction");
  inner.choice("type", {"content"});
  std::string text;
  const Json* content = inner.any("content");
  if (content && content->is_string()) {
    text = content->get<std::string>();
  } else if (content && content->is_array()) {
    for (size_t i = 0; i < content->size(); ++i) {
      const std::string path = fmt::format("prediction.content[{}]", i);
      if (!(*content)[i].is_object()) bad_field(path, "expected an object, not {}", json_kind((*content)[i]));
      Fields part((*content)[i], path);
      part.choice("type", {"text"});
      text += part.string("text").value_or("");
      part.finish();
    }
  } else {
    bad_field("prediction.content", "expected a string or an array of parts");
  }
  inner.finish();
  request.prediction = service.tokenizer.encode(text, false);
  if (std::ssize(request.prediction) > service.engine.options().context)
    request.prediction.resize(static_cast<size_t>(service.engine.options().context));  // no more can be said
}

ChatRequest read_chat(const Json& body, const Service& service, ChatOptions& options) {
  Fields fields(body);
  ChatRequest request;
  fields.string("model");  // whatever a client calls it: there is one
  const Json* messages = fields.array("messages");
  if (!messages || messages->empty()) bad_field("messages", "expected an array of at least one message");
  check_roles(*messages);
  request.conversation.messages = *messages;
  rename_reasoning(request.conversation.messages);
  if (const Json* tools = fields.array("tools")) request.conversation.tools = *tools;
  if (const Json* choice = fields.any("tool_choice")) request.tool_choice = read_tool_choice(*choice);
  request.parallel_calls = fields.boolean("parallel_tool_calls").value_or(true);
  if (const Json* form = fields.object("response_format")) request.form = read_form(*form, "response_format");
  if (const auto grammar = fields.string("grammar")) {
    if (request.form.kind != AnswerForm::Kind::Text)
      bad_field("grammar", "cannot stand beside response_format");
    request.form = {AnswerForm::Kind::Grammar, {}, *grammar};
  }
  read_thinking(fields, request);
  read_sampling(fields, service, request.engine.sampling);
  read_stops(fields, "stop", request.engine);
  read_logprobs(fields, request.engine);
  const auto tokens = fields.integer("max_tokens", -1, INT32_MAX);
  const auto completion = fields.integer("max_completion_tokens", -1, INT32_MAX);
  request.engine.max_tokens = completion.value_or(tokens.value_or(-1));
  request.engine.ignore_end = fields.boolean("ignore_eos").value_or(false);
  request.engine.use_cache = fields.boolean("cache_prompt").value_or(true);
  read_prediction(fields, service, request.engine);
  request.engine.use_drafts = fields.integer("speculative.n_max", 0, INT32_MAX).value_or(1) > 0;
  request.choices = fields.integer("n", 1, kMostChoices).value_or(1);
  if (const auto open = fields.boolean("add_generation_prompt"))
    request.conversation.add_generation_prompt = *open;
  request.stream = fields.boolean("stream").value_or(false);
  if (const Json* stream = fields.object("stream_options")) {
    Fields inner(*stream, "stream_options");
    options.include_usage = inner.boolean("include_usage").value_or(false);
    inner.ignore({"include_obfuscation", "continuous_usage_stats", "chunk_include_usage"});
    inner.finish();
  }
  for (const char* name : {"functions", "function_call"}) {
    if (fields.any(name)) bad_field(name, "is not supported; use tools and tool_choice");
  }
  if (fields.any("audio")) bad_field("audio", "this server knows text alone");
  fields.ignore({"user",
                 "store",
                 "metadata",
                 "service_tier",
                 "safety_identifier",
                 "prompt_cache_key",
                 "prompt_cache_retention",
                 "verbosity",
                 "modalities",
                 "web_search_options",
                 "keep_alive",
                 "options",
                 "reasoning_format",
                 "timings_per_token",
                 "provider",
                 "usage",
                 "id_slot",
                 "return_progress",
                 "skip_special_tokens",
                 "include_reasoning",
                 "separate_reasoning",
                 "stream_response",
                 "stream_delta_chunk_size",
                 "function_calling",
                 "num_ctx",
                 "num_predict",
                 "extra_headers",
                 "extra_body",
                 "prompt_cache_options",
                 "chat_id",
                 "session_id"});
  fields.finish();
  return request;
}

Json call_json(const std::string& id, const std::string& name, const std::string& arguments) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

Json logprobs_json(const Service& service, std::span<const TokenInfo> tokens) {
  Json content = Json::array();
  for (const TokenInfo& token : tokens) content.push_back(token_json(service, token));
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

class ChatSink : public Sink {
 public:
  ChatSink(const Call& call, const ChatRequest& request, ChatOptions options)
      : exchange_(call.exchange),
        stream_(request.stream),
        logprobs_(request.engine.top_logprobs >= 0),
        options_(options),
        calls_(static_cast<size_t>(request.choices)) {}

  /// The first chunk of every choice: the role, and nothing else, as clients expect it.
  std::string opening(const Generation& generation) const {
    std::string out;
    for (size_t choice = 0; choice < calls_.size(); ++choice)
      out += event(chunk(generation, choice, {{"role", "assistant"}, {"content", ""}}, nullptr, {}));
    return out;
  }

  void piece(const Generation& generation, size_t choice, const std::vector<text::OutputEvent>& events,
             std::span<const TokenInfo> tokens) override {
    if (!stream_) return;
    std::string out;
    Json delta = Json::object();
    const auto flush = [&] {
      if (delta.empty() && tokens.empty()) return;
      out += event(chunk(generation, choice, std::move(delta), nullptr, tokens));
      delta = Json::object();
      tokens = {};  // stand with the first chunk that their text brought
    };
    for (const text::OutputEvent& event : events) {
      using Kind = text::OutputEvent::Kind;
      if (event.kind == Kind::Reasoning) delta["reasoning_content"] = event.text;
      if (event.kind == Kind::Content) delta["content"] = event.text;
      if (event.kind == Kind::Call) {
        const size_t number = calls_[choice]++;
        Json call = call_json(generation.call_id(event.text, number, "call_"), event.text, "");
        call["index"] = number;
        delta["tool_calls"] = Json::array({std::move(call)});
      }
      if (event.kind == Kind::Arguments)
        delta["tool_calls"] = {{{"index", calls_[choice] - 1}, {"function", {{"arguments", event.text}}}}};
      flush();
    }
    flush();
    if (!out.empty()) exchange_->write(std::move(out));
  }

  void ended(const Generation& generation, size_t choice) override {
    if (!stream_) return;
    const Choice& ended = generation.choices()[choice];
    Json last = chunk(generation, choice, Json::object(), finish_reason(ended), {});
    last["timings"] = timings_json(ended.result);
    exchange_->write(event(last));
  }

  void done(const Generation& generation, const std::optional<ApiError>& failure) override {
    if (failure && !stream_) return exchange_->respond(error_response(Style::OpenAi, *failure));
    if (failure) {
      exchange_->write(event(error_json(Style::OpenAi, *failure)));
      return exchange_->finish();
    }
    if (!stream_) return exchange_->respond(json_response(whole(generation)));
    if (options_.include_usage) {
      Json last = head(generation, "chat.completion.chunk");
      last["choices"] = Json::array();
      last["usage"] = usage_json(generation);
      exchange_->write(event(last));
    }
    exchange_->write(std::string(kDone));
    exchange_->finish();
  }

 private:
  Json head(const Generation& generation, const char* object) const {
    return {{"id", id_},
            {"object", object},
            {"created", created_},
            {"model", generation.service().model_id},
            {"system_fingerprint", "sluice"}};
  }

  Json chunk(const Generation& generation, size_t choice, Json delta, const char* reason,
             std::span<const TokenInfo> tokens) const {
    Json one = {{"index", choice}, {"delta", std::move(delta)}};
    one["logprobs"] = tokens.empty() ? Json() : logprobs_json(generation.service(), tokens);
    one["finish_reason"] = reason ? Json(reason) : Json();
    Json chunk = head(generation, "chat.completion.chunk");
    chunk["choices"] = Json::array({std::move(one)});
    return chunk;
  }

  Json whole(const Generation& generation) const {
    Json choices = Json::array();
    for (const Choice& choice : generation.choices()) {
      Json message = {{"role", "assistant"}, {"content", choice.output.content}, {"refusal", nullptr}};
      if (choice.called() && choice.output.content.empty()) message["content"] = nullptr;
      if (!choice.output.reasoning_content.empty())
        message["reasoning_content"] = choice.output.reasoning_content;
      for (const text::ToolCall& call : choice.output.tool_calls) {
        Json& calls = message["tool_calls"];
        calls.push_back(
            call_json(generation.call_id(call.name, calls.size(), "call_"), call.name, call.arguments));
      }
      choices.push_back(
          {{"index", choices.size()},
           {"message", std::move(message)},
           {"logprobs", logprobs_ ? logprobs_json(generation.service(), choice.tokens) : Json()},
           {"finish_reason", finish_reason(choice)}});
    }
    Json answer = head(generation, "chat.completion");
    answer["choices"] = std::move(choices);
    answer["usage"] = usage_json(generation);
    answer["timings"] = timings_json(generation.choices().front().result);
    return answer;
  }

  std::shared_ptr<Exchange> exchange_;
  bool stream_, logprobs_;
  ChatOptions options_;
  std::vector<size_t> calls_;  ///< so far, by choice
  std::string id_ = new_id("chatcmpl-");
  int64_t created_ = unix_now();
};

}  // namespace

void chat_completions(const Call& call) {
  ChatOptions options;
  ChatRequest request = read_chat(parse_json(call.exchange->request().body), call.service, options);
  const bool stream = request.stream;
  auto sink = std::make_unique<ChatSink>(call, request, options);
  const ChatSink& writer = *sink;  // there until the generation has ended, which is told after this
  const auto generation =
      Generation::start(call, plan_chat(call.service, std::move(request)), std::move(sink));
  if (stream)
    call.exchange->start_stream(event_stream(writer.opening(*generation)), std::string(kCommentPing));
}

}  // namespace sluice::server
