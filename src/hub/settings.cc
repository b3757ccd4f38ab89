#include "hub/settings.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace sluice::hub {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// The first of these variables that is set and not empty.
template <typename... Names>
std::string first_of(Names... names) {
  std::string value;
  for (const char* name : {names...})
    if (value.empty()) value = variable(name);
  return value;
}

fs::path home() {
  const std::string home = variable("HOME");
  return home.empty() ? fs::path("/") : fs::path(home);
}

/// A path of a variable, whose ~ is the user's folder.
fs::path expanded(const std::string& path) {
  if (path == "~" || path.starts_with("~/")) return home() / path.substr(std::min<size_t>(path.size(), 2));
  return path;
}

std::string trimmed(std::string text) {
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && space(text.back())) text.pop_back();
  text.erase(text.begin(), std::ranges::find_if_not(text, space));
  return text;
}

std::string token_of(const fs::path& hf_home) {
  std::string token = trimmed(first_of("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"));
  if (token.empty()) {
    const std::string named = variable("HF_TOKEN_PATH");
    const fs::path path = named.empty() ? hf_home / "token" : expanded(named);
    std::error_code error;
    if (fs::is_regular_file(path, error)) token = trimmed(read_file(path));
  }
  // It becomes a line of a request's head.
  if (!std::ranges::all_of(token, [](char c) { return c > ' ' && c < 0x7F; }))
    throw UsageError("HF_TOKEN: expected letters, digits and signs alone");
  return token;
}

/// A program that carries its libcurl knows the place of the distribution it was built on alone.
std::string certificates_file() {
  const std::string named = first_of("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE");
  if (!named.empty()) return named;
  for (const char* path : {
           "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch
           "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // Fedora, RHEL
           "/etc/pki/tls/certs/ca-bundle.crt",                   // older ones
           "/etc/ssl/ca-bundle.pem",                             // openSUSE
           "/etc/ssl/cert.pem",                                  // Alpine
       }) {
    std::error_code error;
    if (fs::is_regular_file(path, error)) return path;
  }
  return "";
}

}  // namespace

Settings Settings::from_environment() {
  Settings settings;
  if (const std::string endpoint = variable("HF_ENDPOINT"); !endpoint.empty()) {
    if (!endpoint.starts_with("https://") && !endpoint.starts_with("http://"))
      throw UsageError("HF_ENDPOINT " + endpoint + ": expected https://HOST or http://HOST");
    settings.endpoint = endpoint;
    while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  }
  const std::string named_home = variable("HF_HOME"), caches = variable("XDG_CACHE_HOME");
  const fs::path hf_home = !named_home.empty()
                               ? expanded(named_home)
                               : (caches.empty() ? home() / ".cache" : fs::path(caches)) / "huggingface";
  const std::string cache = first_of("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE");
  settings.cache = fs::absolute(cache.empty() ? hf_home / "hub" : expanded(cache));
  std::string offline = first_of("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE");
  std::ranges::transform(offline, offline.begin(), [](char c) { return c >= 'a' && c <= 'z' ? c - 32 : c; });
  settings.offline = offline == "1" || offline == "ON" || offline == "YES" || offline == "TRUE";
  if (!settings.offline) settings.token = token_of(hf_home);
  settings.certificates = certificates_file();
  return settings;
}

}  // namespace sluice::hub
