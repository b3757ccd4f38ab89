// GET /v1/models, /props, /slots, /cache: what runs here; and POST /cache/clear.
#include <algorithm>

#include "server/answer.h"
#include "server/body.h"
#include "server/endpoints.h"

namespace sluice::server {

namespace {

const char* state_name(ModelState::Kind kind) {
  switch (kind) {
    case ModelState::Kind::Unloaded: return "unloaded";
    case ModelState::Kind::Loading: return "loading";
    case ModelState::Kind::Loaded: return "loaded";
    case ModelState::Kind::Unloading: return "unloading";
    case ModelState::Kind::Failed: return "failed";
  }
  return "";
}

Json model_json(const ModelState& model) {
  Json status = {{"value", state_name(model.kind)}};
  if (model.kind == ModelState::Kind::Loading) status["progress"] = model.progress;
  if (model.kind == ModelState::Kind::Failed) status["error"] = model.problem;
  Json out = {{"id", model.id},
              {"object", "model"},
              {"created", server_start()},
              {"owned_by", "sluice"},
              // As Anthropic's list has it.
              {"type", "model"},
              {"display_name", model.id},
              {"status", std::move(status)}};
  if (model.bytes > 0) out["meta"]["size"] = model.bytes;
  if (!model.service) return out;
  const Service& service = *model.service;
  const int64_t context = service.engine.options().context;
  out.update({{"max_model_len", context},
              {"meta",
               {{"n_ctx", context},
                {"n_ctx_train", service.trained_context},
                {"n_vocab", service.tokenizer.size()},
                {"size", service.model_bytes}}}});
  return out;
}

ApiError no_such_model(const std::string& name) {
  return {404, fmt::format("{}: no such model", name), "model", "model_not_found"};
}

/// The model that a request to load or unload one names.
std::string model_of(const Exchange& exchange) {
  constexpr size_t kMostBytes = 64 << 10;
  const HttpRequest& request = exchange.request();
  if (request.body.size() > kMostBytes)
    throw ApiError(413, fmt::format("expected {{\"model\": NAME}}, at most {} bytes", kMostBytes));
  std::string name = model_named(request, kMostBytes);
  if (name.empty()) throw ApiError(400, "model: missing; expected the name of one of GET /models", "model");
  return name;
}

/// The number as it was given: 0.8, where a float is 0.800000012 as a double.
double as_given(float value) { return std::stod(fmt::format("{}", value)); }

}  // namespace

void models(ModelSet& models, Exchange& exchange) {
  const std::vector<ModelState> list = models.list();
  const std::string& path = exchange.request().path;
  const size_t at = path.find("/models/");
  std::string name = at != std::string::npos ? path.substr(at + 8) : "";
  while (name.starts_with('/')) name.erase(0, 1);
  if (!name.empty()) {
    const auto found = std::ranges::find(list, name, &ModelState::id);
    // Whatever a client calls it, where there is one.
    if (list.size() == 1) return exchange.respond(json_response(model_json(list.front())));
    if (found == list.end()) return exchange.respond(error_response(Style::OpenAi, no_such_model(name)));
    return exchange.respond(json_response(model_json(*found)));
  }
  Json data = Json::array();
  for (const ModelState& model : list) data.push_back(model_json(model));
  const Json first = list.empty() ? Json() : Json(list.front().id),
             last = list.empty() ? Json() : Json(list.back().id);
  exchange.respond(json_response({{"object", "list"},
                                  {"data", std::move(data)},
                                  {"first_id", first},
                                  {"last_id", last},
                                  {"has_more", false}}));
}

// As llama.cpp's server with several models has it: it begins, and GET /models tells the rest.
void load_model(ModelSet& models, Exchange& exchange) {
  const std::string name = model_of(exchange);
  if (models.has_several() &&
      std::ranges::none_of(models.list(), [&](const ModelState& model) { return model.id == name; }))
    throw no_such_model(name);
  models.take(name, [](const auto&, const auto&) {});
  exchange.respond(json_response({{"success", true}}));
}

void unload_model(ModelSet& models, Exchange& exchange) {
  if (const std::optional<ApiError> refused = models.unload(model_of(exchange))) throw *refused;
  exchange.respond(json_response({{"success", true}}));
}

void props(const Call& call) {
  const Service& service = call.service;
  const engine::SamplingParams& s = service.sampling;
  const engine::EngineOptions& options = service.engine.options();
  call.exchange->respond(json_response({{"model_alias", service.model_id},
                                        {"model_path", service.model_path},
                                        {"n_ctx", options.context},
                                        {"total_slots", options.max_sequences},
                                        {"backend", service.backend},
                                        {"default_generation_settings",
                                         {{"n_ctx", options.context},
                                          {"params",
                                           {{"temperature", as_given(s.temperature)},
                                            {"top_k", s.top_k},
                                            {"top_p", as_given(s.top_p)},
                                            {"min_p", as_given(s.min_p)},
                                            {"repeat_penalty", as_given(s.repeat_penalty)},
                                            {"repeat_last_n", s.penalty_window},
                                            {"presence_penalty", as_given(s.presence_penalty)},
                                            {"frequency_penalty", as_given(s.frequency_penalty)}}}}},
                                        {"chat_template", service.chat_template},
                                        {"bos_token", service.bos},
                                        {"eos_token", service.eos},
                                        {"modalities", {{"vision", false}, {"audio", false}}}}));
}

// As vLLM has it: clients that count tokens by themselves (lm-eval's remote tokenizer) begin here.
void tokenizer_info(const Call& call) {
  const Service& service = call.service;
  const auto named = [](const std::string& token) { return token.empty() ? Json(nullptr) : Json(token); };
  call.exchange->respond(json_response({{"bos_token", named(service.bos)},
                                        {"eos_token", named(service.eos)},
                                        {"add_bos_token", service.tokenizer.add_bos()},
                                        {"vocab_size", service.tokenizer.size()},
                                        {"model_max_length", service.engine.options().context},
                                        {"chat_template", service.chat_template}}));
}

void slots(const Call& call) {
  const engine::EngineStats stats = call.service.engine.stats();
  Json list = Json::array();
  for (size_t i = 0; i < stats.slots.size(); ++i) {
    const engine::SlotStats& slot = stats.slots[i];
    list.push_back({{"id", i},
                    {"id_task", slot.id == 0 ? Json(-1) : Json(slot.id)},
                    {"is_processing", slot.id != 0},
                    {"n_ctx", call.service.engine.options().context},
                    {"n_prompt_tokens", slot.prompt_tokens},
                    {"n_prompt_tokens_cached", slot.cached_tokens},
                    {"n_prompt_tokens_brought", slot.brought_tokens},
                    {"n_computed", slot.computed_tokens},
                    {"n_decoded", slot.generated_tokens}});
  }
  call.exchange->respond(json_response(list));
}

// What is cached where. All of it is this model's, but for the folder's bytes.
void cache(const Call& call) {
  const engine::EngineStats stats = call.service.engine.stats();
  const store::StoreStats& store = stats.store;
  Json out = {{"page_tokens", stats.page_tokens},
              {"device",
               {{"pages", stats.pages},
                {"pages_used", stats.used_pages},
                {"pages_cached", stats.cached_pages},
                {"pages_free", stats.free_pages}}},
              {"prompt_tokens_total", stats.prompt_tokens_total},
              {"prompt_tokens_cached_total", stats.cached_tokens_total}};
  if (stats.has_store && store.ram_limit_bytes > 0)
    out["memory"] = {
        {"pages", store.ram_pages}, {"bytes", store.ram_bytes}, {"limit_bytes", store.ram_limit_bytes}};
  if (stats.has_store && store.disk_limit_bytes > 0)
    out["disk"] = {{"pages", store.disk_pages},
                   {"bytes", store.disk_bytes},
                   {"folder_bytes", store.disk_all_bytes},
                   {"limit_bytes", store.disk_limit_bytes}};
  call.exchange->respond(json_response(out));
}

// What running requests use stays.
void clear_cache(const Call& call) {
  call.service.engine.clear_cache([exchange = call.exchange] {
    exchange->respond(json_response({{"status", "ok"}}));
  });
}

}  // namespace sluice::server
