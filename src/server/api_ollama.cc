// Ollama's API: /api/chat and /api/generate, streamed as a JSON text a line, and what its clients ask about
// models.
#include <ctime>

#include "base/clock.h"
#include "server/access.h"
#include "server/answer.h"
#include "server/body.h"
#include "server/chat_completions_request.h"
#include "server/endpoints.h"
#include "server/ollama_request.h"
#include "text/exact_json.h"

namespace sluice::server {

namespace {

/// The version of the API that is spoken here: clients compare it with what they need.
constexpr const char* kOllamaVersion = "0.12.6";

/// "2026-11-27T17:03:12Z".
std::string utc_text(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string line(const Json& json) { return dump(json) + "\n"; }

HttpResponse line_stream() { return {200, "application/x-ndjson", "", {{"Cache-Control", "no-cache"}}}; }

/// A call's arguments as an object, whatever the model wrote.
Json arguments_of(const std::string& text) {
  try {
    Json value = text::parse_exact(text);
    if (value.is_object()) return value;
  } catch (const Json::exception&) {  // cut, or none
  }
  return Json::object();
}

Json call_json(const std::string& name, const std::string& arguments) {
  return {{"function", {{"name", name}, {"arguments", arguments_of(arguments)}}}};
}

class OllamaSink : public Sink {
 public:
  OllamaSink(const Call& call, bool stream, bool chat)
      : exchange_(call.exchange), stream_(stream), chat_(chat) {}

  void piece(const Generation& generation, size_t, const std::vector<text::OutputEvent>& events,
             std::span<const TokenInfo>) override {
    if (!stream_) return;
    using Kind = text::OutputEvent::Kind;
    std::string out;
    for (const text::OutputEvent& event : events) {
      if (event.kind == Kind::Reasoning) out += line(part(generation, "", event.text, {}));
      if (event.kind == Kind::Content) out += line(part(generation, event.text, "", {}));
      if (event.kind == Kind::Call) call_ = {event.text, ""};
      if (event.kind == Kind::Arguments) call_.arguments += event.text;
      if (event.kind == Kind::CallEnd)
        out += line(part(generation, "", "", Json::array({call_json(call_.name, call_.arguments)})));
    }
    if (!out.empty()) exchange_->write(std::move(out));
  }

  void done(const Generation& generation, const std::optional<ApiError>& failure) override {
    if (failure && !stream_) return exchange_->respond(error_response(Style::Ollama, *failure));
    if (failure) {
      exchange_->write(line(error_json(Style::Ollama, *failure)));
      return exchange_->finish();
    }
    const Choice& choice = generation.choices().front();
    if (stream_) {
      Json last = part(generation, "", "", {});
      finish(last, choice);
      exchange_->write(line(last));
      return exchange_->finish();
    }
    Json calls = Json::array();
    for (const text::ToolCall& call : choice.output.tool_calls)
      if (call.whole)
        calls.push_back(call_json(call.name, call.arguments));  // of a cut one no object is left
    Json whole = part(generation, choice.output.content, choice.output.reasoning_content, calls);
    finish(whole, choice);
    exchange_->respond(json_response(whole));
  }

 private:
  Json part(const Generation& generation, const std::string& content, const std::string& thinking,
            const Json& calls) const {
    Json out = {{"model", generation.service().model_id}, {"created_at", utc_text(unix_now())}};
    Json& said = chat_ ? out["message"] : out;
    if (chat_) said["role"] = "assistant";
    said[chat_ ? "content" : "response"] = content;
    if (!thinking.empty()) said["thinking"] = thinking;
    if (!calls.empty()) said["tool_calls"] = calls;
    out["done"] = false;
    return out;
  }

  void finish(Json& out, const Choice& choice) const {
    const engine::Result& result = choice.result;
    out["done"] = true;
    out["done_reason"] = std::string_view(finish_reason(choice)) == "length" ? "length" : "stop";
    out["total_duration"] = now_ns() - began_ns_;
    out["load_duration"] = 0;
    out["prompt_eval_count"] = result.prompt_tokens;
    out["prompt_eval_duration"] = result.prompt_ns;
    out["eval_count"] = result.generated_tokens;
    out["eval_duration"] = result.decode_ns;
  }

  struct CallSoFar {
    std::string name, arguments;
  };
  std::shared_ptr<Exchange> exchange_;
  bool stream_, chat_;
  CallSoFar call_;
  int64_t began_ns_ = now_ns();
};

/// The prompt as the client wrote it.
GenerationPlan plan_raw(const Service& service, ChatRequest request, const std::string& prompt) {
  GenerationPlan plan;
  request.engine.prompt = encode_text(service, prompt);
  plan.prompt_tokens = std::ssize(request.engine.prompt);
  Bound bound = constraint_of(service, request.form);
  request.engine.constraint = std::move(bound.constraint);
  plan.constraint_use = std::move(bound.use);
  plan.requests.push_back(std::move(request.engine));
  return plan;
}

void answer(const Call& call, const OllamaRequest& asked, bool chat) {
  if (asked.empty) {  // clients load a model so
    Json out = {{"model", call.service.model_id}, {"created_at", utc_text(unix_now())}};
    if (chat)
      out["message"] = {{"role", "assistant"}, {"content", ""}};
    else
      out["response"] = "";
    out["done_reason"] = "load";
    out["done"] = true;
    return call.exchange->respond(json_response(out));
  }
  ChatOptions options{.any_field = true};
  ChatRequest request = read_chat(asked.chat, call.service, options);
  if (request.choices != 1) bad_field("n", "is not supported");
  LeftOut left_out = asked.left_out;
  left_out.insert(left_out.end(), request.left_out.begin(), request.left_out.end());
  call.record->left_out(left_out);
  const bool stream = request.stream, raw = asked.raw || (!chat && call.service.chat == nullptr);
  GenerationPlan plan = raw ? plan_raw(call.service, std::move(request), asked.prompt)
                            : plan_chat(call.service, call.group.pages, std::move(request));
  const auto generation =
      Generation::start(call, std::move(plan), std::make_unique<OllamaSink>(call, stream, chat));
  if (stream) call.exchange->start_stream(line_stream(), "");
}

Json details(const ModelState& model) {
  Json out = {{"parent_model", ""}, {"format", "gguf"}};
  const Service* service = model.service.get();
  const std::string family = service ? service->architecture : "";
  const auto parameters = static_cast<double>(service ? service->parameters : 0);
  out["family"] = family;
  out["families"] = Json::array({family});
  out["parameter_size"] = parameters >= 1e9 ? fmt::format("{:.1f}B", parameters * 1e-9)
                          : parameters > 0  ? fmt::format("{:.1f}M", parameters * 1e-6)
                                            : "";
  out["quantization_level"] = service ? service->quantization : "";
  return out;
}

Json listed_model(const ModelState& model) {
  return {{"name", model.id},
          {"model", model.id},
          {"modified_at", utc_text(server_start())},
          {"size", model.bytes},
          {"digest", hex_digest(fmt::format("{} {}", model.id, model.bytes))},
          {"details", details(model)}};
}

}  // namespace

void ollama_chat(const Call& call) { answer(call, read_ollama_chat(request_json(call)), true); }

void ollama_generate(const Call& call) { answer(call, read_ollama_generate(request_json(call)), false); }

void ollama_show(const Call& call) {
  const Json body = request_json(call);
  const Fields fields(body);  // an object; what else it says changes nothing
  const Service& service = call.service;
  Json capabilities = {"completion"};
  if (service.chat != nullptr) {
    capabilities.push_back("tools");  // a template that knows none is shown them as text
    if (service.chat_template.find("think") != std::string::npos) capabilities.push_back("thinking");
  }
  const ModelState state = {service.model_id, ModelState::Kind::Loaded, 1, service.model_bytes, "",
                            call.lease};
  call.exchange->respond(
      json_response({{"modelfile", ""},
                     {"parameters", ""},
                     {"template", service.chat_template},
                     {"modified_at", utc_text(server_start())},
                     {"details", details(state)},
                     {"model_info",
                      {{"general.architecture", service.architecture},
                       {"general.parameter_count", service.parameters},
                       {service.architecture + ".context_length", service.engine.options().context}}},
                     {"capabilities", std::move(capabilities)}}));
}

void ollama_tags(ModelSet& models, Exchange& exchange) {
  Json list = Json::array();
  for (const ModelState& model : models.list()) list.push_back(listed_model(model));
  exchange.respond(json_response({{"models", std::move(list)}}));
}

void ollama_ps(ModelSet& models, Exchange& exchange) {
  Json list = Json::array();
  for (const ModelState& model : models.list()) {
    if (!model.service) continue;
    Json one = listed_model(model);
    one["expires_at"] = utc_text(unix_now() + 86400);
    one["size_vram"] = model.service->backend == "cpu" ? 0 : model.bytes;
    one["context_length"] = model.service->engine.options().context;
    list.push_back(std::move(one));
  }
  exchange.respond(json_response({{"models", std::move(list)}}));
}

void ollama_version(ModelSet&, Exchange& exchange) {
  exchange.respond(json_response({{"version", kOllamaVersion}}));
}

}  // namespace sluice::server
