#include "server/request_log.h"

#include <algorithm>
#include <ctime>

#include "base/clock.h"
#include "text/json_text.h"

namespace sluice::server {

namespace {

constexpr size_t kMostLetters = 80;  ///< of what a client named
constexpr size_t kMostLeftOut = 600;

std::string time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

/// What a client sent, harmless for a terminal and one line long.
std::string harmless(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMostLetters)) out += c > 0x20 && c < 0x7F && c != '"' ? c : '?';
  return out;
}

/// Health checks and metrics come every few seconds and say nothing.
bool is_routine(const HttpRequest& request, int status) { return request.method != "POST" && status < 400; }

double ms(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

std::string head(const HttpRequest& request, int status, std::string_view client) {
  return fmt::format("{} {} {} {} client {}", time_now(), harmless(request.method), harmless(request.path),
                     status, client.empty() ? "local" : client);
}

}  // namespace

RequestRecord::RequestRecord(const Log& log, PromptHistory& history, std::shared_ptr<Exchange> exchange,
                             std::string client)
    : log_(log),
      history_(history),
      exchange_(std::move(exchange)),
      client_(std::move(client)),
      started_ns_(now_ns()) {}

void RequestRecord::model_asked_for(const Json& body) {
  if (!body.is_object()) return;
  const auto model = body.find("model");
  const std::lock_guard lock(mutex_);
  if (model != body.end() && model->is_string()) model_ = harmless(model->get_ref<const std::string&>());
}

void RequestRecord::ended(const Tokens& tokens) {
  const std::lock_guard lock(mutex_);
  tokens_ = tokens;
  generated_ = true;
}

void RequestRecord::left_out(const LeftOut& what) {
  const std::lock_guard lock(mutex_);
  for (const std::string& one : what) {
    if (left_out_.size() > kMostLeftOut) {
      if (!left_out_.ends_with("...")) left_out_ += "; ...";
      break;
    }
    left_out_ += (left_out_.empty() ? "" : "; ") + one.substr(0, 2 * kMostLetters);
  }
  for (char& c : left_out_)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
}

void RequestRecord::asks(const PromptHistory::Owner& owner, const std::vector<int32_t>& prompt,
                         const std::function<std::string(std::span<const int32_t>)>& words) {
  if (!log_.on(LogLevel::Cache)) return;
  const PromptHistory::Nearest nearest = history_.nearest(owner, prompt);
  const size_t common = nearest.common;
  const auto around = [&](const std::vector<int32_t>& tokens) {
    constexpr size_t kBefore = 8, kBehind = 12;
    const size_t begin = common - std::min(common, kBefore), end = std::min(common + kBehind, tokens.size());
    return text::json_quote(words(std::span(tokens).subspan(begin, end - begin)));
  };
  std::string parting = "no earlier one begins like it";
  if (nearest.tokens && common == nearest.tokens->size())
    parting = fmt::format("goes on where an earlier one ended, at token {}", common);
  else if (nearest.tokens && common == prompt.size())
    parting = "an earlier one begins like that";
  else if (nearest.tokens)
    parting = fmt::format("parts from an earlier one at token {}: that had {}, this has {}", common,
                          around(*nearest.tokens), around(prompt));
  const std::lock_guard lock(mutex_);
  owner_ = owner;
  said_ = prompt;
  common_ = common;
  parting_ = std::move(parting);
}

void RequestRecord::says(int32_t token) {
  if (!log_.on(LogLevel::Cache)) return;
  const std::lock_guard lock(mutex_);
  said_.push_back(token);
}

std::string RequestRecord::cache_line() const {
  std::string line =
      fmt::format("cache: {} of {} tokens of the prompt found; {}", tokens_.cached, tokens_.prompt, parting_);
  // Whole pages are found, and an unfinished one by the next that goes on with it.
  constexpr int64_t kPage = 64;
  const auto common = static_cast<int64_t>(common_);
  if (tokens_.cached + kPage <= std::min(common, tokens_.prompt - 1))
    line += fmt::format("; those from {} to {} are not kept any more", tokens_.cached, common);
  return line;
}

RequestRecord::~RequestRecord() {
  const int status = exchange_->status() != 0 ? exchange_->status() : 500;
  const HttpRequest& request = exchange_->request();
  if (!log_.on(is_routine(request, status) ? LogLevel::Debug : LogLevel::Requests)) return;
  std::string line = head(request, status, client_);
  if (!model_.empty()) line += fmt::format(" model {}", model_);
  if (generated_) {
    const int64_t decoded = std::max<int64_t>(tokens_.generated - 1, 0);  // the first comes out of the prompt
    const double speed = tokens_.decode_ns > 0
                             ? static_cast<double>(decoded) * 1e9 / static_cast<double>(tokens_.decode_ns)
                             : 0;
    line += fmt::format(" in {} cached {} out {} at {:.1f}/s first {:.0f} ms finish {}", tokens_.prompt,
                        tokens_.cached, tokens_.generated, speed, ms(tokens_.first_token_ns), tokens_.finish);
  }
  line += fmt::format(" took {:.0f} ms", ms(now_ns() - started_ns_));
  if (exchange_->gone() && !generated_) line += " client gone";
  if (!left_out_.empty()) line += fmt::format(" left out: {}", left_out_);
  log_.write(line);
  if (parting_.empty()) return;
  if (generated_) log_.write(cache_line());
  history_.keep(owner_, std::move(said_));
}

void log_refusal(const Log& log, const HttpRequest& request, int status, std::string_view why) {
  if (!log.on(LogLevel::Requests)) return;
  std::string reason(why.substr(0, 2 * kMostLetters));
  for (char& c : reason)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  log.write(fmt::format("{} refused: {}", head(request, status, request.peer), reason));
}

}  // namespace sluice::server
