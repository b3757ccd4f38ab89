#include "server/answer.h"

#include <openssl/evp.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <random>

#include "text/exact_json.h"
#include "text/stream.h"

namespace sluice::server {

namespace {

/// Bytes of a token, which need not be whole characters.
std::string as_text(std::string_view bytes) {
  text::Utf8Stream stream;
  std::string text = stream.push(bytes);
  return text += stream.finish();
}

Json one_token(const Service& service, const engine::TokenLogprob& token) {
  const std::string_view bytes = service.tokenizer.bytes(token.token, true);
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<uint8_t>(byte));
  // JSON knows no infinity; OpenAI writes this for what is as good as impossible.
  constexpr float kLeast = -9999;
  return {
      {"token", as_text(bytes)}, {"logprob", std::max(token.logprob, kLeast)}, {"bytes", std::move(list)}};
}

}  // namespace

std::string new_id(std::string_view prefix) {
  thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  static constexpr std::string_view kLetters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string id(prefix);
  for (int i = 0; i < 24; ++i) id += kLetters[random() % kLetters.size()];
  return id;
}

int64_t unix_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int64_t server_start() {
  static const int64_t when = unix_now();
  return when;
}

std::string hex_digest(std::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (::EVP_Digest(text.data(), text.size(), digest, &size, ::EVP_sha256(), nullptr) != 1)
    throw std::bad_alloc();
  std::string out;
  for (unsigned int i = 0; i < size; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}

std::string dump(const Json& json) { return text::dump_exact(json); }

HttpResponse json_response(const Json& json) { return {200, "application/json", dump(json), {}}; }

HttpResponse event_stream(std::string opening) {
  return {200,
          "text/event-stream; charset=utf-8",
          std::move(opening),
          {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
}

std::string event(const Json& data, std::string_view name) {
  std::string text;
  if (!name.empty()) text = fmt::format("event: {}\n", name);
  return text += "data: " + dump(data) + "\n\n";
}

Json usage_json(const Generation& generation) {
  const int64_t prompt = generation.prompt_tokens(), written = generation.generated_tokens();
  return {{"prompt_tokens", prompt},
          {"completion_tokens", written},
          {"total_tokens", prompt + written},
          {"prompt_tokens_details", {{"cached_tokens", generation.cached_tokens()}}},
          {"completion_tokens_details",
           {{"reasoning_tokens", generation.reasoning_tokens()},
            {"accepted_prediction_tokens", generation.accepted_tokens()},
            {"rejected_prediction_tokens", generation.draft_tokens() - generation.accepted_tokens()}}}};
}

Json timings_json(const engine::Result& result) {
  const auto ms = [](int64_t ns) { return static_cast<double>(ns) * 1e-6; };
  const auto rate = [](int64_t tokens, int64_t ns) {
    return ns > 0 && tokens > 0 ? static_cast<double>(tokens) * 1e9 / static_cast<double>(ns) : 0.0;
  };
  const int64_t read = result.prompt_tokens - result.cached_tokens;
  // The first token comes out of the prompt's last step, so decoding makes one less.
  const int64_t decoded = std::max<int64_t>(result.generated_tokens - 1, 0);
  return {{"queue_ms", ms(result.queue_ns)},
          {"cache_n", result.cached_tokens},
          {"prompt_n", read},
          {"prompt_ms", ms(result.prompt_ns)},
          {"prompt_per_second", rate(read, result.prompt_ns)},
          {"predicted_n", result.generated_tokens},
          {"predicted_ms", ms(result.decode_ns)},
          {"predicted_per_second", rate(decoded, result.decode_ns)},
          {"draft_n", result.draft_tokens},
          {"draft_n_accepted", result.accepted_tokens}};
}

Json token_json(const Service& service, const TokenInfo& token) {
  Json entry = one_token(service, token.logprobs.front());
  Json top = Json::array();
  for (size_t i = 1; i < token.logprobs.size(); ++i) top.push_back(one_token(service, token.logprobs[i]));
  entry["top_logprobs"] = std::move(top);
  return entry;
}

const char* finish_reason(const Choice& choice) {
  if (!choice.complete()) return "length";
  return choice.called() ? "tool_calls" : "stop";
}

}  // namespace sluice::server
