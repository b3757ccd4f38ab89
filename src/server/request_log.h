// The server's log: a line a request, when it has ended. Never keys, and no texts but at the level Cache.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/content.h"
#include "server/http.h"
#include "server/prompt_history.h"

namespace sluice::server {

enum class LogLevel {
  Off,
  Requests,
  Debug,
  Cache,  ///< and how far each prompt was found in the cache, with a few words of where it parts from another
};

struct Log {
  LogLevel level = LogLevel::Off;
  std::function<void(std::string_view line)> write;  ///< from any thread; the line has no end of line

  bool on(LogLevel wanted) const { return write && level >= wanted; }
};

/// What is known of a request. The line is written when the last who works for it lets it go. From any
/// thread.
class RequestRecord {
 public:
  /// `log` and `history` outlive it.
  RequestRecord(const Log& log, PromptHistory& history, std::shared_ptr<Exchange> exchange,
                std::string client);
  RequestRecord(const RequestRecord&) = delete;
  RequestRecord& operator=(const RequestRecord&) = delete;
  ~RequestRecord();

  struct Tokens {
    int64_t prompt = 0, cached = 0, generated = 0;
    int64_t first_token_ns = 0, decode_ns = 0;
    std::string_view finish;  ///< static
  };
  void model_asked_for(const Json& body);
  void ended(const Tokens& tokens);
  void left_out(const LeftOut& what);
  /// The prompt of the first choice, and the tokens that it says then: for the level Cache. `words` makes
  /// text of tokens.
  void asks(const PromptHistory::Owner& owner, const std::vector<int32_t>& prompt,
            const std::function<std::string(std::span<const int32_t>)>& words);
  void says(int32_t token);

 private:
  std::string cache_line() const;

  const Log& log_;
  PromptHistory& history_;
  std::shared_ptr<Exchange> exchange_;
  std::string client_;
  int64_t started_ns_;
  std::mutex mutex_;  // over what follows
  std::string model_, left_out_;
  Tokens tokens_;
  PromptHistory::Owner owner_ = {};
  std::vector<int32_t> said_;  ///< the prompt and what follows; only at the level Cache
  std::string parting_;        ///< where the prompt parts from an earlier one, in words
  size_t common_ = 0;          ///< tokens that they have in common
  bool generated_ = false;
};

/// The line of a request that was refused before anybody worked for it.
void log_refusal(const Log& log, const HttpRequest& request, int status, std::string_view why);

}  // namespace sluice::server
