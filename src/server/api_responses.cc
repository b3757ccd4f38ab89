// POST /v1/responses: OpenAI's responses API, stateless.
#include "server/answer.h"
#include "server/body.h"
#include "server/custom_input.h"
#include "server/endpoints.h"
#include "server/responses_request.h"

namespace sluice::server {

namespace {

/// One answer. Its items are written as they come; a stream tells each step, and the end repeats the whole.
class ResponseSink : public Sink {
 public:
  ResponseSink(const Call& call, ResponsesRequest request)
      : exchange_(call.exchange),
        model_(call.service.model_id),
        stream_(request.chat.stream),
        origins_(std::move(request.chat.origins)),
        echo_(std::move(request.echo)) {}

  std::string opening() {
    tell("response.created", {{"response", whole("in_progress")}});
    tell("response.in_progress", {{"response", whole("in_progress")}});
    return std::exchange(out_, {});
  }

  void piece(const Generation& generation, size_t, const std::vector<text::OutputEvent>& events,
             std::span<const TokenInfo>) override {
    for (const text::OutputEvent& event : events) add(generation, event);
    flush();
  }

  void done(const Generation& generation, const std::optional<ApiError>& failure) override {
    if (failure && !stream_) return exchange_->respond(error_response(Style::OpenAi, *failure));
    if (failure) {
      Json response = whole("failed");
      response["error"] = {{"code", "server_error"}, {"message", failure->what()}};
      tell("response.failed", {{"response", std::move(response)}});
      flush();
      return exchange_->finish();
    }
    const Choice& choice = generation.choices().front();
    close_item(choice.complete() ? "completed" : "incomplete");
    Json response = whole(choice.complete() ? "completed" : "incomplete");
    if (!choice.complete())
      response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    else
      response["completed_at"] = unix_now();
    response["usage"] = {{"input_tokens", generation.prompt_tokens()},
                         {"input_tokens_details", {{"cached_tokens", generation.cached_tokens()}}},
                         {"output_tokens", generation.generated_tokens()},
                         {"output_tokens_details", {{"reasoning_tokens", generation.reasoning_tokens()}}},
                         {"total_tokens", generation.prompt_tokens() + generation.generated_tokens()}};
    if (!stream_) return exchange_->respond(json_response(response));
    tell(choice.complete() ? "response.completed" : "response.incomplete",
         {{"response", std::move(response)}});
    flush();
    exchange_->finish();
  }

 private:
  using Kind = text::OutputEvent::Kind;

  /// An event of the stream: its type, then what belongs to it.
  void tell(const char* type, const Json& more) {
    if (!stream_) return;
    Json data = {{"type", type}, {"sequence_number", sequence_++}};
    data.update(more);
    out_ += event(data, type);
  }
  void flush() {
    if (!out_.empty()) exchange_->write(std::exchange(out_, {}));
  }

  Json whole(const char* status) const {
    Json response = {{"id", id_},
                     {"object", "response"},
                     {"created_at", created_},
                     {"status", status},
                     {"error", nullptr},
                     {"incomplete_details", nullptr},
                     {"instructions", nullptr},
                     {"max_output_tokens", nullptr},
                     {"model", model_},
                     {"output", items_},
                     {"parallel_tool_calls", true},
                     {"previous_response_id", nullptr},
                     {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                     {"store", false},
                     {"temperature", nullptr},
                     {"text", {{"format", {{"type", "text"}}}}},
                     {"tool_choice", "auto"},
                     {"tools", Json::array()},
                     {"top_p", nullptr},
                     {"truncation", "disabled"},
                     {"usage", nullptr},
                     {"user", nullptr},
                     {"metadata", Json::object()}};
    response.update(echo_);
    return response;
  }

  void add(const Generation& generation, const text::OutputEvent& piece) {
    if (piece.kind == Kind::Call) return begin_call(generation, piece.text);
    if (piece.kind == Kind::CallEnd) return close_item("completed");
    if (piece.kind == Kind::Arguments) {
      return add_to_call(origin_.kind == ToolOrigin::Kind::Custom ? input_.push(piece.text) : piece.text);
    }
    const bool thinking = piece.kind == Kind::Reasoning;
    if (open_ != piece.kind) {
      close_item(open_ == Kind::Call ? "incomplete" : "completed");
      open_ = piece.kind;
      text_.clear();
      item_ = thinking ? Json{{"type", "reasoning"}, {"id", new_id("rs_")}, {"summary", Json::array()}}
                       : Json{{"type", "message"}, {"id", new_id("msg_")}, {"role", "assistant"}};
      item_["content"] = Json::array();
      item_["status"] = "in_progress";
      tell("response.output_item.added", {{"output_index", items_.size()}, {"item", item_}});
      tell("response.content_part.added", place({{"content_index", 0}, {"part", part("")}}));
    }
    text_ += piece.text;
    Json delta = place({{"content_index", 0}, {"delta", piece.text}});
    if (!thinking) delta["logprobs"] = Json::array();
    tell(thinking ? "response.reasoning_text.delta" : "response.output_text.delta", delta);
  }

  void begin_call(const Generation& generation, const std::string& name) {
    close_item(open_ == Kind::Call ? "incomplete" : "completed");
    open_ = Kind::Call;
    text_.clear();
    const auto found = origins_.find(name);
    origin_ = found == origins_.end() ? ToolOrigin{.name = name} : found->second;
    input_ = {};
    const CallItem shape = call_item(origin_, "");
    item_ = {{"type", shape.type},
             {"id", new_id(shape.id_prefix)},
             {"call_id", generation.call_id(name, calls_++, "call_")}};
    item_.update(shape.begun);
    item_["status"] = "in_progress";
    tell("response.output_item.added", {{"output_index", items_.size()}, {"item", item_}});
  }

  /// More of its arguments, or of a custom tool's input.
  void add_to_call(const std::string& text) {
    if (text.empty()) return;
    text_ += text;
    if (origin_.kind == ToolOrigin::Kind::Custom)
      tell("response.custom_tool_call_input.delta", place({{"delta", text}}));
    if (origin_.kind == ToolOrigin::Kind::Function)
      tell("response.function_call_arguments.delta", place({{"delta", text}}));
  }

  /// A cut call, too: its arguments are those that came.
  void end_call(const char* status) {
    if (origin_.kind == ToolOrigin::Kind::Custom) add_to_call(input_.finish());
    const CallItem shape = call_item(origin_, text_);
    if (!shape.event.empty()) tell((shape.event + ".done").c_str(), place(shape.done));
    item_.update(shape.whole);
    finish_item(status);
  }

  /// Where an event belongs, and what it says.
  Json place(const Json& more) const {
    Json data = {{"item_id", item_["id"]}, {"output_index", items_.size()}};
    data.update(more);
    return data;
  }
  Json part(const std::string& text) const {
    if (open_ == Kind::Reasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {
        {"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
  }

  void close_item(const char* status) {
    if (!open_) return;
    if (open_ == Kind::Call) {
      open_.reset();
      return end_call(status);
    }
    Json done = place({{"content_index", 0}, {"text", text_}});
    if (open_ == Kind::Content) done["logprobs"] = Json::array();
    tell(open_ == Kind::Reasoning ? "response.reasoning_text.done" : "response.output_text.done", done);
    tell("response.content_part.done", place({{"content_index", 0}, {"part", part(text_)}}));
    item_["content"].push_back(part(text_));
    open_.reset();
    finish_item(status);
  }
  void finish_item(const char* status) {
    item_["status"] = status;
    tell("response.output_item.done", {{"output_index", items_.size()}, {"item", item_}});
    items_.push_back(std::move(item_));
    item_ = Json::object();
  }

  std::shared_ptr<Exchange> exchange_;
  std::string model_, id_ = new_id("resp_"), out_;
  bool stream_;
  ToolOrigins origins_;
  ToolOrigin origin_;  ///< of the call that goes on
  CustomInput input_;  ///< the same
  Json echo_, items_ = Json::array(), item_ = Json::object();
  std::optional<Kind> open_;  ///< the item that goes on, and ...
  std::string text_;          ///< ... its text so far
  size_t calls_ = 0;          ///< so far
  int64_t sequence_ = 0, created_ = unix_now();
};

}  // namespace

void responses(const Call& call) {
  ResponsesRequest request = read_responses(request_json(call), call.service);
  call.record->left_out(request.chat.left_out);
  const bool stream = request.chat.stream;
  call.take_to_the_end(3 * dump(request.echo).size());
  GenerationPlan plan = plan_chat(call.service, call.group.pages, request.chat);
  auto sink = std::make_unique<ResponseSink>(call, std::move(request));
  ResponseSink& writer = *sink;  // there until the generation has ended, which is told after this
  Generation::start(call, std::move(plan), std::move(sink));
  if (stream) call.exchange->start_stream(event_stream(writer.opening()), std::string(kCommentPing));
}

}  // namespace sluice::server
