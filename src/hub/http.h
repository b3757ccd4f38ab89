// One client of HTTP: redirects by its own rules, limits on all that an answer may hold. Knows nothing of
// hubs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "hub/settings.h"

namespace sluice::hub {

/// No answer, or one that was cut: another try may do better.
class NetworkError : public Error {
 public:
  using Error::Error;
};

struct Answer {
  int status = 0;
  std::map<std::string, std::string, std::less<>> headers;  ///< of the last answer, names in small letters
  std::string header(std::string_view name) const;          ///< empty: it has none
  bool good() const { return status == 200 || status == 206; }
};

struct Request {
  std::string url;
  bool head = false;     ///< without the body
  bool follow = true;    ///< redirects
  int64_t from = 0;      ///< first byte of the body that is wanted
  int64_t most_bytes{};  ///< more of a body is an error
  /// A good answer's head, then its body piece by piece. What they throw ends the request.
  std::function<void(const Answer&)> begin;
  std::function<void(std::string_view)> body;
};

class Http {
 public:
  /// The token is sent to the host of settings.endpoint alone.
  explicit Http(const Settings& settings);
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;
  ~Http();

  /// Throws NetworkError, or Error where no other try would help: too many redirects, one to something that
  /// is no HTTP or no longer encrypted, a body that is too long, a certificate that nobody vouches for.
  Answer send(const Request& request);
  /// The body of a good answer; empty for any other.
  Answer get(const std::string& url, int64_t most_bytes, std::string& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A path of a URL: every byte escaped that is neither a letter, a digit, one of -._~ nor a slash.
std::string escaped_path(std::string_view path);

}  // namespace sluice::hub
