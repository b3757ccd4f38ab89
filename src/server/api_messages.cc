// POST /v1/messages and /v1/messages/count_tokens: Anthropic's API.
#include "server/answer.h"
#include "server/endpoints.h"
#include "server/messages_request.h"

namespace sluice::server {

namespace {

const char* stop_reason(const Choice& choice) {
  switch (choice.result.finish) {
    case engine::Finish::EndToken: return choice.called() ? "tool_use" : "end_turn";
    case engine::Finish::StopString: return "stop_sequence";
    case engine::Finish::ContextFull: return "model_context_window_exceeded";
    default: return "max_tokens";
  }
}

Json usage(int64_t prompt, int64_t cached, int64_t written) {
  return {{"input_tokens", prompt - cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached},
          {"output_tokens", written}};
}

Json usage(const Generation& generation) {
  return usage(generation.prompt_tokens(), generation.cached_tokens(), generation.generated_tokens());
}

Json stop_sequence(const Choice& choice) {
  return choice.result.finish == engine::Finish::StopString ? Json(choice.result.stop) : Json();
}

/// The arguments of a call are JSON, checked when they were read.
Json tool_use(const text::ToolCall& call, bool with_input) {
  return {{"type", "tool_use"},
          {"id", new_id("toolu_")},
          {"name", call.name},
          {"input", with_input ? Json::parse(call.arguments) : Json::object()}};
}

class MessageSink : public Sink {
 public:
  MessageSink(const Call& call, bool stream)
      : exchange_(call.exchange), model_(call.service.model_id), stream_(stream) {}

  void piece(const Generation& generation, size_t, const std::vector<text::OutputEvent>& events,
             std::span<const TokenInfo>) override {
    if (!stream_) {
      for (const text::OutputEvent& event : events) keep(event);
      return;
    }
    std::string out = start(generation);
    for (const text::OutputEvent& event : events) write(event, out);
    exchange_->write(std::move(out));
  }

  void done(const Generation& generation, const std::optional<ApiError>& failure) override {
    const Choice& choice = generation.choices().front();
    if (failure && !stream_) return exchange_->respond(error_response(Style::Anthropic, *failure));
    if (failure) {
      exchange_->write(event(error_json(Style::Anthropic, *failure), "error"));
      return exchange_->finish();
    }
    if (!stream_) {
      Json message = head(std::move(content_));
      message["stop_reason"] = stop_reason(choice);
      message["stop_sequence"] = stop_sequence(choice);
      message["usage"] = usage(generation);
      return exchange_->respond(json_response(message));
    }
    std::string out = start(generation);
    close_block(out);
    out += event({{"type", "message_delta"},
                  {"delta", {{"stop_reason", stop_reason(choice)}, {"stop_sequence", stop_sequence(choice)}}},
                  {"usage", usage(generation)}},
                 "message_delta");
    out += event({{"type", "message_stop"}}, "message_stop");
    exchange_->write(std::move(out));
    exchange_->finish();
  }

 private:
  using Kind = text::OutputEvent::Kind;

  Json head(Json content) const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_},
            {"content", std::move(content)}};
  }

  /// Adds to the blocks of an answer that is sent whole.
  void keep(const text::OutputEvent& event) {
    if (event.kind == Kind::Call) {
      content_.push_back(tool_use(event.call, true));
      return;
    }
    const bool thinking = event.kind == Kind::Reasoning;
    const char* type = thinking ? "thinking" : "text";
    if (content_.empty() || content_.back()["type"] != type) {
      content_.push_back({{"type", type}, {type, ""}});
      if (thinking) content_.back()["signature"] = "";
    }
    content_.back()[type].get_ref<std::string&>() += event.text;
  }

  std::string start(const Generation& generation) {
    if (std::exchange(started_, true)) return {};
    Json message = head(Json::array());
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = usage(generation.prompt_tokens(), 0, 0);
    return event({{"type", "message_start"}, {"message", std::move(message)}}, "message_start");
  }

  void write(const text::OutputEvent& piece, std::string& out) {
    if (piece.kind == Kind::Call) {
      close_block(out);
      open_block(tool_use(piece.call, false), out);
      delta({{"type", "input_json_delta"}, {"partial_json", piece.call.arguments}}, out);
      open_ = Kind::Call;
      return close_block(out);
    }
    const bool thinking = piece.kind == Kind::Reasoning;
    if (open_ != piece.kind) {
      close_block(out);
      if (thinking)
        open_block({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, out);
      else
        open_block({{"type", "text"}, {"text", ""}}, out);
      open_ = piece.kind;
    }
    if (thinking)
      delta({{"type", "thinking_delta"}, {"thinking", piece.text}}, out);
    else
      delta({{"type", "text_delta"}, {"text", piece.text}}, out);
  }

  void open_block(Json block, std::string& out) const {
    out += event({{"type", "content_block_start"}, {"index", index_}, {"content_block", std::move(block)}},
                 "content_block_start");
  }
  void delta(Json delta, std::string& out) const {
    out += event({{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}},
                 "content_block_delta");
  }
  void close_block(std::string& out) {
    if (!open_) return;
    if (open_ == Kind::Reasoning) delta({{"type", "signature_delta"}, {"signature", ""}}, out);
    out += event({{"type", "content_block_stop"}, {"index", index_}}, "content_block_stop");
    open_.reset();
    ++index_;
  }

  std::shared_ptr<Exchange> exchange_;
  std::string model_, id_ = new_id("msg_");
  bool stream_, started_ = false;
  Json content_ = Json::array();
  std::optional<Kind> open_;  ///< the block that goes on
  int64_t index_ = 0;
};

}  // namespace

void messages(const Call& call) {
  ChatRequest request = read_messages(parse_json(call.exchange->request().body), call.service);
  const bool stream = request.stream;
  Generation::start(call, plan_chat(call.service, std::move(request)),
                    std::make_unique<MessageSink>(call, stream));
  if (!stream) return;
  call.exchange->start_stream(event_stream(), event({{"type", "ping"}}, "ping"));
}

void count_tokens(const Call& call) {
  const Json body = parse_json(call.exchange->request().body);
  const EncodedPrompt prompt = encode_chat(call.service, read_messages_conversation(body));
  call.exchange->respond(json_response({{"input_tokens", prompt.tokens.size()}}));
}

}  // namespace sluice::server
