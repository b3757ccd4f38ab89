// POST /v1/chat/completions: OpenAI's chat completions, with the fields that other servers of this kind have
// (reasoning_content, chat_template_kwargs, top_k, min_p, timings, ...).
#include "server/answer.h"
#include "server/body.h"
#include "server/chat_completions_request.h"
#include "server/endpoints.h"

namespace sluice::server {

namespace {

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
    for (const text::OutputEvent& event : events) {
      using Kind = text::OutputEvent::Kind;
      Json delta = Json::object();
      std::span<const TokenInfo> of_content;
      if (event.kind == Kind::Reasoning) delta["reasoning_content"] = event.text;
      if (event.kind == Kind::Content) {
        delta["content"] = event.text;
        of_content = std::exchange(tokens, {});  // all stand with the first of it
      }
      if (event.kind == Kind::Call) {
        const size_t number = calls_[choice]++;
        Json call = call_json(generation.call_id(event.text, number, "call_"), event.text, "");
        call["index"] = number;
        delta["tool_calls"] = Json::array({std::move(call)});
      }
      if (event.kind == Kind::Arguments)
        delta["tool_calls"] = {{{"index", calls_[choice] - 1}, {"function", {{"arguments", event.text}}}}};
      if (!delta.empty())
        out += server::event(chunk(generation, choice, std::move(delta), nullptr, of_content));
    }
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
  ChatRequest request = read_chat(request_json(call), call.service, options);
  call.record->left_out(request.left_out);
  const bool stream = request.stream;
  auto sink = std::make_unique<ChatSink>(call, request, options);
  const ChatSink& writer = *sink;  // there until the generation has ended, which is told after this
  const auto generation =
      Generation::start(call, plan_chat(call.service, std::move(request)), std::move(sink));
  if (stream)
    call.exchange->start_stream(event_stream(writer.opening(*generation)), std::string(kCommentPing));
}

}  // namespace sluice::server
