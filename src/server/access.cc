#include "server/access.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sluice::server {

namespace {

constexpr std::string_view kBearer = "bearer ";

bool same_letters(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    const auto small = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    return small(x) == small(y);
  });
}

std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, std::min(host.size(), host.find(']') + 1));
  return host.substr(0, host.find(':'));
}

bool is_loopback(std::string_view host) {
  const std::string_view name = without_port(host);
  return same_letters(name, "localhost") || name == "127.0.0.1" || name == "[::1]";
}

}  // namespace

ApiKeys::Digest ApiKeys::digest(std::string_view key) {
  Digest digest{};
  unsigned size = 0;
  CHECK(::EVP_Digest(key.data(), key.size(), digest.data(), &size, ::EVP_sha256(), nullptr) == 1 &&
        size == digest.size());
  return digest;
}

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) digests_.push_back(digest(key));
}

bool ApiKeys::given(const HttpRequest& request) {
  return !request.header("authorization").empty() || !request.header("x-api-key").empty();
}

std::optional<ApiKeys::Key> ApiKeys::find(const HttpRequest& request) const {
  std::string_view given = request.header("authorization");
  if (same_letters(given.substr(0, kBearer.size()), kBearer))
    given.remove_prefix(kBearer.size());
  else
    given = request.header("x-api-key");
  const Digest wanted = digest(given);
  bool found = false;
  for (const Digest& one : digests_)  // all of them, and each to its end
    found |= ::CRYPTO_memcmp(one.data(), wanted.data(), one.size()) == 0;
  if (!found) return {};
  uint64_t number = 0;
  for (size_t i = 0; i < sizeof number; ++i) number = number << 8 | wanted[i];
  return Key{fmt::format("key {:02x}{:02x}{:02x}{:02x}", wanted[0], wanted[1], wanted[2], wanted[3]),
             std::max<uint64_t>(number, 1)};
}

std::string_view Hosts::name(const HttpRequest& request) {
  std::string_view name = without_port(request.header("host"));
  if (name.ends_with('.')) name.remove_suffix(1);
  return name;
}

bool Hosts::admits(const HttpRequest& request) const {
  const std::string_view name = Hosts::name(request);
  if (name.empty() || name.starts_with('[')) return true;
  if (name.find_first_not_of("0123456789.") == std::string_view::npos) return true;  // an address
  if (name.find('.') == std::string_view::npos) return true;
  for (const std::string_view own : {".localhost", ".local", ".internal", ".home.arpa"})
    if (name.size() > own.size() && same_letters(name.substr(name.size() - own.size()), own)) return true;
  return std::any_of(allowed_.begin(), allowed_.end(),
                     [&](const std::string& one) { return one == "*" || same_letters(one, name); });
}

Origins::Origins(std::vector<std::string> allowed, bool local_only)
    : allowed_(std::move(allowed)), local_only_(local_only) {}

bool Origins::allowed(std::string_view origin) const {
  return std::any_of(allowed_.begin(), allowed_.end(),
                     [&](const std::string& one) { return one == "*" || same_letters(one, origin); });
}

bool Origins::same(std::string_view origin, std::string_view host) const {
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos || !same_letters(origin.substr(scheme + 3), host)) return false;
  return !local_only_ || is_loopback(host);
}

bool Origins::admits(const HttpRequest& request) const {
  const std::string_view origin = request.header("origin");
  return origin.empty() || allowed(origin) || same(origin, request.header("host"));
}

Headers Origins::headers(const HttpRequest& request) const {
  const std::string_view origin = request.header("origin");
  if (origin.empty() || !allowed(origin)) return {};
  Headers headers = {{"Access-Control-Allow-Origin", std::string(origin)}, {"Vary", "Origin"}};
  if (request.method == "OPTIONS") {
    const std::string_view wanted = request.header("access-control-request-headers");
    headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    headers.emplace_back("Access-Control-Allow-Headers", wanted.empty() ? "*" : std::string(wanted));
    headers.emplace_back("Access-Control-Max-Age", "86400");
  }
  return headers;
}

}  // namespace sluice::server
