// POST /v1/chat/completions: OpenAI's chat completions, with the fields that other servers of this kind have
// (reasoning_content, chat_template_kwargs, top_k, min_p, timings, ...).
#include "server/answer.h"
#include "server/body.h"
#include "server/chat_completions_request.h"
#include "server/custom_input.h"
#include "server/endpoints.h"

namespace sluice::server {

namespace {

/// text: its arguments, or a custom tool's input.
Json call_json(const std::string& id, bool custom, const std::string& name, const std::string& text) {
  if (custom) return {{"id", id}, {"type", "custom"}, {"custom", {{"name", name}, {"input", text}}}};
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", text}}}};
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
        origins_(request.origins),
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
    for (const text::OutputEvent& event : events) {
      using Kind = text::OutputEvent::Kind;
      Json delta = Json::object();
      std::span<const TokenInfo> of_content;
      if (event.kind == Kind::Reasoning) delta["reasoning_content"] = event.text;
      if (event.kind == Kind::Content) {
        delta["content"] = event.text;
        of_content = std::exchange(tokens, {});  // all stand with the first of it
      }
      Calls& calls = calls_[choice];
      if (event.kind == Kind::Call) {
        calls = {.count = calls.count + 1, .custom = origins_.contains(event.text)};
        const std::string id = generation.call_id(event.text, calls.count - 1, "call_");
        Json call = call_json(id, calls.custom, event.text, "");
        call["index"] = calls.count - 1;
        delta["tool_calls"] = Json::array({std::move(call)});
      }
      if (event.kind == Kind::Arguments && !calls.custom)
        delta["tool_calls"] = {{{"index", calls.count - 1}, {"function", {{"arguments", event.text}}}}};
      if (event.kind == Kind::Arguments && calls.custom) calls.add_input(delta, calls.input.push(event.text));
      if (event.kind == Kind::CallEnd && calls.custom) calls.add_input(delta, calls.input.finish());
      if (!delta.empty())
        out += server::event(chunk(generation, choice, std::move(delta), nullptr, of_content));
    }
    if (!out.empty()) exchange_->write(std::move(out));
  }

  void prompt(const Generation& generation, size_t choice, const PromptProgress& progress) override {
    Json told = chunk(generation, choice, Json::object(), nullptr, {});
    told["prompt_progress"] = {{"total", progress.total},
                               {"cache", progress.cached},
                               {"processed", progress.done},
                               {"time_ms", progress.ns / 1'000'000}};
    exchange_->write(event(told));
  }

  void ended(const Generation& generation, size_t choice) override {
    if (!stream_) return;
    const Choice& ended = generation.choices()[choice];
    Json delta = Json::object();
    calls_[choice].add_input(delta, calls_[choice].input.finish());  // of one that was cut
    Json last = chunk(generation, choice, std::move(delta), finish_reason(ended), {});
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
        const bool custom = origins_.contains(call.name);
        CustomInput input;
        std::string text = custom ? input.push(call.arguments) : call.arguments;
        if (custom) text += input.finish();
        calls.push_back(
            call_json(generation.call_id(call.name, calls.size(), "call_"), custom, call.name, text));
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
  ToolOrigins origins_;  ///< all custom
  /// A choice's so far, and the one that goes on.
  struct Calls {
    size_t count = 0;
    bool custom = false;
    CustomInput input = {};

    void add_input(Json& delta, const std::string& text) const {
      if (!text.empty()) delta["tool_calls"] = {{{"index", count - 1}, {"custom", {{"input", text}}}}};
    }
  };
  std::vector<Calls> calls_;  ///< by choice
  std::string id_ = new_id("chatcmpl-");
  int64_t created_ = unix_now();
};

}  // namespace

void chat_completions(const Call& call) {
  ChatOptions options;
  ChatRequest request = read_chat(request_json(call), call.service, options);
  call.record->left_out(request.left_out);
  const bool stream = request.stream;
  auto sink = std::make_unique<ChatSink>(call, request, options);
  const ChatSink& writer = *sink;  // there until the generation has ended, which is told after this
  GenerationPlan plan = plan_chat(call.service, call.group.pages, std::move(request));
  plan.hears_prompt = stream && options.progress;
  const auto generation = Generation::start(call, std::move(plan), std::move(sink));
  if (stream)
    call.exchange->start_stream(event_stream(writer.opening(*generation)), std::string(kCommentPing));
}

}  // namespace sluice::server
