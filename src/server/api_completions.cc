// POST /v1/completions: OpenAI's completions of plain text, or of tokens. Names of control tokens in a text
// are tokens here, for clients that write a model's prompt format themselves. A prompt is echoed with its
// tokens' log-probabilities, if these are asked for: so evaluation harnesses score texts.
#include <algorithm>
#include <optional>
#include <utility>

#include "server/answer.h"
#include "server/body.h"
#include "server/chat_request.h"
#include "server/endpoints.h"
#include "text/exact_json.h"
#include "text/stream.h"

namespace sluice::server {

namespace {

constexpr int64_t kDefaultTokens = 16;  ///< as the API has it
/// Log-probabilities of all prompts of a request.
constexpr int64_t kMostScores = 1 << 19;

/// A prompt as it is echoed.
struct Echo {
  std::string text;
  size_t cut = 0;  ///< bytes that its first token would write and the text does not begin with
};

struct CompletionOptions {
  bool stream = false, include_usage = false, echo = false;
  std::vector<std::optional<Echo>> prompts;  ///< to echo, by choice; none once it has been
};

Echo echo_of(const text::Tokenizer& tokenizer, std::span<const int32_t> prompt) {
  const std::string bytes = tokenizer.decode(prompt, false);
  size_t all = 0;
  for (const int32_t token : prompt) all += tokenizer.bytes(token, false).size();
  text::Utf8Stream utf8;
  std::string text = utf8.push(bytes);
  return {text += utf8.finish(), all - bytes.size()};
}

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
  request.prompt_logprobs = options.echo && request.top_logprobs >= 0;
  if (!fields.string("suffix").value_or("").empty()) bad_field("suffix", "is not supported");
  options.stream = fields.boolean("stream").value_or(false);
  if (const Json* stream = fields.object("stream_options")) {
    Fields inner(*stream, "stream_options");
    options.include_usage = inner.boolean("include_usage").value_or(false);
    inner.ignore({"include_obfuscation", "continuous_usage_stats"});
    inner.finish();
  }
  AnswerForm form;
  if (auto grammar = fields.string("grammar"))
    form = {.kind = AnswerForm::Kind::Grammar, .grammar = std::move(*grammar)};
  if (const Json* format = fields.object("response_format"))
    if (AnswerForm said = read_form(*format, "response_format"); said.kind != AnswerForm::Kind::Text)
      form = std::move(said);
  form.schema = text::with_nearest_numbers(std::move(form.schema));
  const auto constraint = constraint_of(service, form);
  const auto prompts = read_prompts(fields.any("prompt"), service);
  fields.ignore({"user", "store", "metadata", "service_tier", "keep_alive", "id_slot", "timings_per_token",
                 "speculative.n_min", "speculative.p_min"});
  fields.expect("skip_special_tokens", 1);
  fields.finish();

  if (static_cast<int64_t>(prompts.size()) * choices > kMostChoices)
    bad_field("n", "more than {} answers together", kMostChoices);
  GenerationPlan plan;
  plan.all_tokens = request.prompt_logprobs;
  plan.constraint_use = constraint.use;
  for (const auto& prompt : prompts) plan.prompt_tokens += static_cast<int64_t>(prompt.size());
  if (request.prompt_logprobs && plan.prompt_tokens * choices * (2 + request.top_logprobs) > kMostScores)
    bad_field("logprobs",
              "{} for each of {} tokens that are echoed are too many; {} log-probabilities at most",
              request.top_logprobs + 2, plan.prompt_tokens * choices, kMostScores);
  for (const auto& prompt : prompts) {
    for (int64_t i = 0; i < choices; ++i) {
      plan.requests.push_back(request);
      plan.requests.back().prompt = prompt;
      plan.requests.back().sampling.seed += static_cast<uint64_t>(i);
      if (constraint) plan.requests.back().constraint = constraint->clone();
      options.prompts.push_back(options.echo ? std::optional(echo_of(service.tokenizer, prompt))
                                             : std::nullopt);
    }
  }
  return plan;
}

/// Tokens as the API lists them: by field, each with the place of its text in the choice's, in characters.
class TokenList {
 public:
  /// Adds tokens of a prompt, or of what follows it.
  void add(const Service& service, std::span<const TokenInfo> tokens, size_t cut = 0) {
    for (const TokenInfo& token : tokens) {
      std::string_view bytes = service.tokenizer.bytes(token.token, false);
      const size_t passed = std::min(std::exchange(cut, cut - std::min(cut, bytes.size())), bytes.size());
      offsets_.push_back(offset_);
      count(utf8_.push(bytes.substr(passed)));
      if (token.logprobs.empty()) {  // nothing stands before it that would foretell it
        names_.push_back(token_json(service, {token.token, {{token.token, 0}}})["token"]);
        values_.push_back(nullptr);
        tops_.push_back(nullptr);
        continue;
      }
      const Json entry = token_json(service, token);
      Json top = Json::object();
      for (const Json& other : entry["top_logprobs"])  // of several tokens with one name the likeliest
        if (!top.contains(other["token"])) top[other["token"]] = other["logprob"];
      if (!top.contains(entry["token"])) top[entry["token"]] = entry["logprob"];
      names_.push_back(entry["token"]);
      values_.push_back(entry["logprob"]);
      tops_.push_back(std::move(top));
    }
  }
  /// A text ends here, and another one begins.
  void end_text() { count(utf8_.finish()); }
  /// What was added since the last time; null: nothing.
  Json take() {
    if (names_.empty()) return nullptr;
    Json list = {{"tokens", std::exchange(names_, Json::array())},
                 {"token_logprobs", std::exchange(values_, Json::array())},
                 {"top_logprobs", std::exchange(tops_, Json::array())},
                 {"text_offset", std::exchange(offsets_, Json::array())}};
    return list;
  }

 private:
  void count(std::string_view text) {
    for (const char byte : text) offset_ += (static_cast<uint8_t>(byte) & 0xC0) != 0x80;
  }
  Json names_ = Json::array(), values_ = Json::array(), tops_ = Json::array(), offsets_ = Json::array();
  text::Utf8Stream utf8_;
  size_t offset_ = 0;  ///< of the next token
};

class CompletionSink : public Sink {
 public:
  CompletionSink(const Call& call, CompletionOptions options)
      : exchange_(call.exchange), options_(std::move(options)), lists_(options_.prompts.size()) {}

  void piece(const Generation& generation, size_t choice, const std::vector<text::OutputEvent>& events,
             std::span<const TokenInfo> tokens) override {
    if (!options_.stream) return;
    std::string text = begin(generation, choice);
    for (const text::OutputEvent& event : events) text += event.text;
    if (text.empty() && tokens.empty()) return;
    lists_[choice].add(generation.service(), tokens);
    Json one = {{"index", choice}, {"text", std::move(text)}};
    one["logprobs"] = lists_[choice].take();
    one["finish_reason"] = nullptr;
    exchange_->write(event(chunk(generation, std::move(one))));
  }

  void ended(const Generation& generation, size_t choice) override {
    if (!options_.stream) return;
    const Choice& ended = generation.choices()[choice];
    std::string text = begin(generation, choice);
    Json last = chunk(generation, {{"index", choice},
                                   {"text", std::move(text)},
                                   {"logprobs", lists_[choice].take()},
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
  std::string begin(const Generation& generation, size_t choice) {
    std::optional<Echo> prompt = std::exchange(options_.prompts[choice], std::nullopt);
    if (!prompt) return {};
    lists_[choice].add(generation.service(), generation.choices()[choice].prompt, prompt->cut);
    lists_[choice].end_text();
    return std::move(prompt->text);
  }

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

  Json whole(const Generation& generation) {
    Json choices = Json::array();
    for (size_t i = 0; i < generation.choices().size(); ++i) {
      const Choice& choice = generation.choices()[i];
      std::string text = begin(generation, i);
      lists_[i].add(generation.service(), choice.tokens);
      choices.push_back({{"index", i},
                         {"text", text += choice.output.content},
                         {"logprobs", lists_[i].take()},
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
  std::vector<TokenList> lists_;  ///< by choice
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
