// POST /v1/messages and /v1/messages/count_tokens: Anthropic's API.
#include "server/answer.h"
#include "server/body.h"
#include "server/endpoints.h"
#include "server/messages_request.h"
#include "text/exact_json.h"
#include "text/json_stream.h"

namespace sluice::server {

namespace {

const char* stop_reason(const Choice& choice) {
  if (choice.output.incomplete && choice.result.finish != engine::Finish::ContextFull) return "max_tokens";
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

Json tool_use(const std::string& id, const std::string& name) {
  return {{"type", "tool_use"}, {"id", id}, {"name", name}, {"input", Json::object()}};
}

/// Arguments are JSON, checked when they were read; those of a cut call are kept as far as they came.
Json input_of(const std::string& arguments, bool whole) {
  return text::parse_exact(whole ? arguments : text::json_closed(arguments));
}

class MessageSink : public Sink {
 public:
  MessageSink(const Call& call, bool stream)
      : exchange_(call.exchange), model_(call.service.model_id), stream_(stream) {}

  std::string opening(const Generation& generation) const {
    Json message = head(Json::array());
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = usage(generation.prompt_tokens(), 0, 0);
    return event({{"type", "message_start"}, {"message", std::move(message)}}, "message_start");
  }

  void piece(const Generation& generation, size_t, const std::vector<text::OutputEvent>& events,
             std::span<const TokenInfo>) override {
    if (!stream_) {
      for (const text::OutputEvent& event : events) keep(generation, event);
      return;
    }
    std::string out;
    for (const text::OutputEvent& event : events) write(generation, event, out);
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
      end_call(false);
      Json message = head(std::move(content_));
      message["stop_reason"] = stop_reason(choice);
      message["stop_sequence"] = stop_sequence(choice);
      message["usage"] = usage(generation);
      return exchange_->respond(json_response(message));
    }
    std::string out;
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
  void keep(const Generation& generation, const text::OutputEvent& event) {
    if (event.kind == Kind::Arguments) {
      arguments_ += event.text;
      return;
    }
    end_call(event.kind == Kind::CallEnd);
    if (event.kind == Kind::CallEnd) return;
    if (event.kind == Kind::Call) {
      content_.push_back(tool_use(generation.call_id(event.text, calls_++, "toolu_"), event.text));
      open_ = Kind::Call;
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

  /// Gives the call at hand, if there is one, its input.
  void end_call(bool whole) {
    if (open_ != Kind::Call) return;
    content_.back()["input"] = input_of(std::exchange(arguments_, {}), whole);
    open_.reset();
  }

  void write(const Generation& generation, const text::OutputEvent& piece, std::string& out) {
    if (piece.kind == Kind::Call) {
      close_block(out);
      open_block(tool_use(generation.call_id(piece.text, calls_++, "toolu_"), piece.text), out);
      open_ = Kind::Call;
      return;
    }
    if (piece.kind == Kind::Arguments)
      return delta({{"type", "input_json_delta"}, {"partial_json", piece.text}}, out);
    if (piece.kind == Kind::CallEnd) return close_block(out);
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
  bool stream_;
  Json content_ = Json::array();
  std::optional<Kind> open_;  ///< the block that goes on; of an answer that is sent whole a call, and ...
  std::string arguments_;     ///< ... its arguments
  size_t calls_ = 0;          ///< so far
  int64_t index_ = 0;
};

}  // namespace

void messages(const Call& call) {
  ChatRequest request = read_messages(request_json(call), call.service);
  call.record->left_out(request.left_out);
  const bool stream = request.stream;
  auto sink = std::make_unique<MessageSink>(call, stream);
  const MessageSink& writer = *sink;  // there until the generation has ended, which is told after this
  const auto generation =
      Generation::start(call, plan_chat(call.service, call.group.pages, std::move(request)), std::move(sink));
  if (!stream) return;
  call.exchange->start_stream(event_stream(writer.opening(*generation)), event({{"type", "ping"}}, "ping"));
}

void count_tokens(const Call& call) {
  const Json body = request_json(call);
  const EncodedPrompt prompt = encode_chat(call.service, read_messages_conversation(body));
  call.exchange->respond(json_response({{"input_tokens", prompt.tokens.size()}}));
}

}  // namespace sluice::server
