// Who may ask: API keys, and web pages of other origins. Knows headers alone.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http.h"

namespace sluice::server {

/// A set of keys of which nothing can be learnt from how long a wrong one takes.
class ApiKeys {
 public:
  explicit ApiKeys(const std::vector<std::string>& keys);
  bool empty() const { return digests_.empty(); }
  /// A key without what would give it away.
  struct Key {
    std::string name;
    uint64_t number;  ///< the same for the same key, and hardly for another; never 0
  };
  /// The request's key (Authorization: Bearer, or x-api-key), if it is one of these.
  std::optional<Key> find(const HttpRequest& request) const;
  /// Whether the request has a key at all.
  static bool given(const HttpRequest& request);

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest(std::string_view key);
  std::vector<Digest> digests_;
};

/// Under which names a server that asks for no key may be reached. A page of a stranger whose name was made
/// to point here (DNS rebinding) is of the server's own origin to a browser; its name is all that tells.
class Hosts {
 public:
  /// Names besides addresses, those without a dot, and those that no stranger can have (localhost, .local,
  /// .internal, .home.arpa); "*": any.
  explicit Hosts(std::vector<std::string> allowed) : allowed_(std::move(allowed)) {}
  /// The name by which a request was made, without a port.
  static std::string_view name(const HttpRequest& request);
  bool admits(const HttpRequest& request) const;

 private:
  std::vector<std::string> allowed_;
};

/// Which pages of a browser may ask (CORS). Requests without an Origin are none of a page's.
class Origins {
 public:
  /// `local_only`: pages that claim to come from this very server must name it as this machine does, or a
  /// stranger's name that was made to point here would do.
  Origins(std::vector<std::string> allowed, bool local_only);
  bool admits(const HttpRequest& request) const;
  /// What lets the page read the answer; none where that needs no permission, or there is none.
  Headers headers(const HttpRequest& request) const;

 private:
  bool allowed(std::string_view origin) const;
  bool same(std::string_view origin, std::string_view host) const;

  std::vector<std::string> allowed_;
  bool local_only_;
};

}  // namespace sluice::server
