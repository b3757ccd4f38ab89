// GET /v1/models, /props, /slots: what runs here.
#include "server/answer.h"
#include "server/endpoints.h"

namespace sluice::server {

namespace {

/// Since when the model is there: the same in every answer.
int64_t created() {
  static const int64_t when = unix_now();
  return when;
}

Json model_json(const Service& service) {
  const int64_t context = service.engine.options().context;
  return {{"id", service.model_id},
          {"object", "model"},
          {"created", created()},
          {"owned_by", "sluice"},
          {"max_model_len", context},
          {"meta",
           {{"n_ctx", context},
            {"n_ctx_train", service.trained_context},
            {"n_vocab", service.tokenizer.size()},
            {"size", service.model_bytes}}},
          // As Anthropic's list has it.
          {"type", "model"},
          {"display_name", service.model_id}};
}

/// The number as it was given: 0.8, where a float is 0.800000012 as a double.
double as_given(float value) { return std::stod(fmt::format("{}", value)); }

}  // namespace

void models(const Call& call) {
  const std::string& path = call.exchange->request().path;
  const Json model = model_json(call.service);
  const size_t name = path.find("/models/");
  if (name == std::string::npos || path.find_first_not_of('/', name + 8) == std::string::npos) {
    return call.exchange->respond(json_response({{"object", "list"},
                                                 {"data", Json::array({model})},
                                                 {"first_id", call.service.model_id},
                                                 {"last_id", call.service.model_id},
                                                 {"has_more", false}}));
  }
  call.exchange->respond(json_response(model));  // whatever a client calls it: there is one
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
                    {"n_computed", slot.computed_tokens},
                    {"n_decoded", slot.generated_tokens}});
  }
  call.exchange->respond(json_response(list));
}

}  // namespace sluice::server
