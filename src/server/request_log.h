// The server's log: a line a request, when it has ended. Never texts, never keys.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "server/content.h"
#include "server/http.h"

namespace sluice::server {

enum class LogLevel { Off, Requests, Debug };

struct Log {
  LogLevel level = LogLevel::Off;
  std::function<void(std::string_view line)> write;  ///< from any thread; the line has no end of line

  bool on(LogLevel wanted) const { return write && level >= wanted; }
};

/// What is known of a request. The line is written when the last who works for it lets it go. From any
/// thread.
class RequestRecord {
 public:
  /// `log` outlives it.
  RequestRecord(const Log& log, std::shared_ptr<Exchange> exchange, std::string client);
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

 private:
  const Log& log_;
  std::shared_ptr<Exchange> exchange_;
  std::string client_;
  int64_t started_ns_;
  std::mutex mutex_;  // over what follows
  std::string model_, left_out_;
  Tokens tokens_;
  bool generated_ = false;
};

/// The line of a request that was refused before anybody worked for it.
void log_refusal(const Log& log, const HttpRequest& request, int status, std::string_view why);

}  // namespace sluice::server
