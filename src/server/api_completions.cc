// POST /v1/completions: OpenAI's completions of plain text, or of tokens. Names of control tokens in a text
// are tokens here, for clients that write a model's prompt format themselves.
#include "server/answer.h"
#include "server/body.h"
#include "server/chat_request.h"
#include "server/endpoints.h"

namespace sluice::server {

namespace {

constexpr int64_t kMostChoices = 64;
constexpr int64_t kDefaultTokens = 16;  ///< as the API has it

struct CompletionOptions {
  bool stream = false, include_usage = false, echo = false;
  std::vector<std::string> prompts;  ///< to echo, by choice
};

std::vector<int32_t> read_tokens(const Json& list, const std::string& path, int32_t vocabulary) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& id = list[i];
    const bool good = id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < vocabulary;
    if (!good) bad_field(fmt::format("{}[{}]", path, i), "expected a token id from 0 to {}", vocabulary - 1);
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

/// One prompt or several, as text or as tokens.
std::vector<std::vector<int32_t>> read_prompts(const Json* prompt, const Service& service) {
  const int32_t vocabulary = service.tokenizer.size();
  if (!prompt) bad_field("prompt", "is missing");
  if (prompt->is_string()) return {encode_text(service, prompt->get<std::string>())};
  if (!prompt->is_array() || prompt->empty())
    bad_field("prompt", "expected a string, an array of strings, or token ids");
  if (prompt->front().is_number()) return {read_tokens(*prompt, "prompt", vocabulary)};
  if (static_cast<int64_t>(prompt->size()) > kMostChoices)
    bad_field("prompt", "more than {} prompts", kMostChoices);
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < prompt->size(); ++i) {
    const Json& one = (*prompt)[i];
    const std::string path = fmt::format("prompt[{}]", i);
    if (one.is_string())
      prompts.push_back(encode_text(service, one.get<std::string>()));
    else if (one.is_array())
      prompts.push_back(read_tokens(one, path, vocabulary));
    else
      bad_field(path, "expected a string or token ids, not {}", json_kind(one));
  }
  return prompts;
}

GenerationPlan read_completion(const Json& body, const Service& service, CompletionOptions& options) {
  Fields fields(body);
  fields.string("model");
  engine::Request request;
  read_sampling(fields, service, request.sampling);
  read_stops(fields, "stop", request);
  request.max_tokens = fields.integer("max_tokens", -1, INT32_MAX).value_or(kDefaultTokens);
  request.ignore_end = fields.boolean("ignore_eos").value_or(false);
  request.use_cache = fields.boolean("cache_prompt").value_or(true);
  request.use_drafts = fields.integer("speculative.n_max", 0, INT32_MAX).value_or(1) > 0;
  if (const auto top = fields.integer("logprobs", 0, engine::Request::kMostTopLogprobs))
    request.top_logprobs = static_cast<int32_t>(*top);
  const int64_t choices = fields.integer("n", 1, kMostChoices).value_or(1);
  if (fields.integer("best_of", 1, kMostChoices).value_or(choices) != choices)
    bad_field("best_of", "is not supported unless it equals n");
  options.echo = fields.boolean("echo").value_or(false);
  if (options.echo && request.top_logprobs >= 0) bad_field("echo", "cannot stand beside logprobs here");
  if (!fields.string("suffix").value_or("").empty()) bad_field("suffix", "is not supported");
  options.stream = fields.boolean("stream").value_or(false);
  if (const Json* stream = fields.object("stream_options")) {
    Fields inner(*stream, "stream_options");
    options.include_usage = inner.boolean("include_usage").value_or(false);
    inner.ignore({"include_obfuscation", "continuous_usage_stats"});
    inner.finish();
  }
  std::shared_ptr<text::TokenConstraint> constraint;
  const text::AnswerPlace place = {service.constraints, nullptr, false};
  const auto grammar = fields.string("grammar");
  try {
    if (grammar) constraint = text::gbnf_constraint(*grammar, place);
    if (const Json* format = fields.object("response_format")) {
      const AnswerForm form = read_form(*format, "response_format");
      if (form.kind == AnswerForm::Kind::JsonObject) constraint = text::json_object_constraint(place);
      if (form.kind == AnswerForm::Kind::JsonSchema)
        constraint = text::json_schema_constraint(form.schema, place, {}, form.strict);
    }
  } catch (const ApiError&) {
    throw;
  } catch (const Error& error) {
    bad_field(grammar ? "grammar" : "response_format", "{}", error.what());
  }
  const auto prompts = read_prompts(fields.any("prompt"), service);
  fields.ignore({"user", "store", "metadata", "service_tier", "keep_alive", "id_slot", "timings_per_token"});
  fields.expect("skip_special_tokens", 1);
  fields.finish();

  if (static_cast<int64_t>(prompts.size()) * choices > kMostChoices)
    bad_field("n", "more than {} answers together", kMostChoices);
  GenerationPlan plan;
  for (const auto& prompt : prompts) {
    plan.prompt_tokens += static_cast<int64_t>(prompt.size());
    for (int64_t i = 0; i < choices; ++i) {
      plan.requests.push_back(request);
      plan.requests.back().prompt = prompt;
      plan.requests.back().sampling.seed += static_cast<uint64_t>(i);
      if (constraint) plan.requests.back().constraint = constraint->clone();
      options.prompts.push_back(options.echo ? service.tokenizer.decode(prompt, false) : "");
    }
  }
  return plan;
}

class CompletionSink : public Sink {
 public:
  CompletionSink(const Call& call, CompletionOptions options)
      : exchange_(call.exchange), options_(std::move(options)), offsets_(options_.prompts.size()) {}

  void piece(const Generation& generation, size_t choice, const std::vector<text::OutputEvent>& events,
             std::span<const TokenInfo> tokens) override {
    if (!options_.stream) return;
    std::string text = begin(choice);
    for (const text::OutputEvent& event : events) text += event.text;
    if (text.empty() && tokens.empty()) return;
    Json one = {{"index", choice}, {"text", std::move(text)}};
    one["logprobs"] = tokens.empty() ? Json() : logprobs_json(generation.service(), tokens, offsets_[choice]);
    one["finish_reason"] = nullptr;
    exchange_->write(event(chunk(generation, std::move(one))));
  }

  void ended(const Generation& generation, size_t choice) override {
    if (!options_.stream) return;
    const Choice& ended = generation.choices()[choice];
    Json last = chunk(generation, {{"index", choice},
                                   {"text", begin(choice)},
                                   {"logprobs", nullptr},
                                   {"finish_reason", finish_reason(ended)}});
    last["timings"] = timings_json(ended.result);
    exchange_->write(event(last));
  }

  void done(const Generation& generation, const std::optional<ApiError>& failure) override {
    if (failure && !options_.stream) return exchange_->respond(error_response(Style::OpenAi, *failure));
    if (failure) {
      exchange_->write(event(error_json(Style::OpenAi, *failure)));
      return exchange_->finish();
    }
    if (!options_.stream) return exchange_->respond(json_response(whole(generation)));
    if (options_.include_usage) {
      Json last = head(generation);
      last["choices"] = Json::array();
      last["usage"] = usage_json(generation);
      exchange_->write(event(last));
    }
    exchange_->write(std::string(kDone));
    exchange_->finish();
  }

 private:
  /// The prompt, where it is to be echoed and has not been.
  std::string begin(size_t choice) { return std::exchange(options_.prompts[choice], ""); }

  Json head(const Generation& generation) const {
    return {{"id", id_},
            {"object", "text_completion"},
            {"created", created_},
            {"model", generation.service().model_id},
            {"system_fingerprint", "sluice"}};
  }
  Json chunk(const Generation& generation, Json choice) const {
    Json chunk = head(generation);
    chunk["choices"] = Json::array({std::move(choice)});
    return chunk;
  }

  static Json logprobs_json(const Service& service, std::span<const TokenInfo> tokens, size_t& offset) {
    Json names = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
    for (const TokenInfo& token : tokens) {
      const Json entry = token_json(service, token);
      Json top = Json::object();
      for (const Json& other : entry["top_logprobs"])
        top[other["token"].get<std::string>()] = other["logprob"];
      names.push_back(entry["token"]);
      values.push_back(entry["logprob"]);
      tops.push_back(std::move(top));
      offsets.push_back(offset);
      offset += entry["token"].get_ref<const std::string&>().size();
    }
    return {{"tokens", std::move(names)},
            {"token_logprobs", std::move(values)},
            {"top_logprobs", std::move(tops)},
            {"text_offset", std::move(offsets)}};
  }

  Json whole(const Generation& generation) {
    Json choices = Json::array();
    for (size_t i = 0; i < generation.choices().size(); ++i) {
      const Choice& choice = generation.choices()[i];
      Json logprobs;
      if (!choice.tokens.empty()) logprobs = logprobs_json(generation.service(), choice.tokens, offsets_[i]);
      choices.push_back({{"index", i},
                         {"text", begin(i) + choice.output.content},
                         {"logprobs", std::move(logprobs)},
                         {"finish_reason", finish_reason(choice)}});
    }
    Json answer = head(generation);
    answer["choices"] = std::move(choices);
    answer["usage"] = usage_json(generation);
    answer["timings"] = timings_json(generation.choices().front().result);
    return answer;
  }

  std::shared_ptr<Exchange> exchange_;
  CompletionOptions options_;
  std::vector<size_t> offsets_;  ///< where each choice's next token begins
  std::string id_ = new_id("cmpl-");
  int64_t created_ = unix_now();
};

}  // namespace

void completions(const Call& call) {
  CompletionOptions options;
  GenerationPlan plan = read_completion(request_json(call), call.service, options);
  const bool stream = options.stream;
  Generation::start(call, std::move(plan), std::make_unique<CompletionSink>(call, std::move(options)));
  if (stream) call.exchange->start_stream(event_stream(), std::string(kCommentPing));
}

}  // namespace sluice::server
