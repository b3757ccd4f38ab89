// The head of a request: read by Boost.Beast, then held to what RFC 9112 wants of a server, so that nobody
// who stands in between can take the same bytes for other requests than this server does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http.h"

namespace sluice::server {

/// Names in lower case, and nothing but ASCII is changed.
std::string lower_case(std::string_view text);

struct HeadProblem {
  int status;
  std::string message;
};

class HttpHead {
 public:
  explicit HttpHead(const HttpOptions& options);
  ~HttpHead();
  HttpHead(const HttpHead&) = delete;
  HttpHead& operator=(const HttpHead&) = delete;

  /// Takes bytes off the front of `in`, none behind the head. What is wrong, if anything is.
  std::optional<HeadProblem> take(std::string& in);
  /// What follows is known once it is.
  bool done() const { return done_; }

  HttpRequest request;
  bool keep_alive = false;
  bool answers_in_chunks = false;  ///< the client knows them
  bool chunked = false;            ///< its body comes in chunks
  uint64_t length = 0;             ///< of its body, otherwise

 private:
  std::optional<HeadProblem> read();
  std::optional<HeadProblem> read_target(std::string_view target);
  std::optional<HeadProblem> read_body_length();
  std::optional<HeadProblem> check_host();

  struct Impl;
  const HttpOptions& options_;
  std::unique_ptr<Impl> impl_;
  bool done_ = false;
};

}  // namespace sluice::server
