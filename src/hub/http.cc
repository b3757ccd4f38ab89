#include "hub/http.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>

namespace sluice::hub {
namespace {

constexpr int kMostRedirects = 10;
constexpr size_t kMostHeaderBytes = 64 << 10;
constexpr long kConnectSeconds = 20, kSilentSeconds = 30;

struct CurlUrl {
  explicit CurlUrl(const std::string& url) : handle(curl_url()) {
    bad = curl_url_set(handle, CURLUPART_URL, url.c_str(), 0) != CURLUE_OK;
  }
  CurlUrl(const CurlUrl&) = delete;
  CurlUrl& operator=(const CurlUrl&) = delete;
  ~CurlUrl() { curl_url_cleanup(handle); }
  std::string part(CURLUPart what) const {
    char* text = nullptr;
    if (bad || curl_url_get(handle, what, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return "";
    std::string out = text;
    curl_free(text);
    return out;
  }
  CURLU* handle;
  bool bad;
};

/// Scheme, host and port.
struct Origin {
  explicit Origin(const CurlUrl& url)
      : scheme(url.part(CURLUPART_SCHEME)), host(url.part(CURLUPART_HOST)), port(url.part(CURLUPART_PORT)) {}
  bool operator==(const Origin&) const = default;
  std::string scheme, host, port;
};

/// Whether another try may give what this one did not.
bool may_pass(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM: return true;
    default: return false;
  }
}

/// What one transfer's callbacks share. No exception may pass through libcurl.
struct Transfer {
  const Request& request;
  Answer answer;
  size_t header_bytes = 0;
  int64_t body_bytes = 0;
  bool began = false;
  std::exception_ptr thrown;

  template <typename Work>
  size_t guarded(size_t bytes, Work work) {
    try {
      work();
      return bytes;
    } catch (...) {
      thrown = std::current_exception();
      return 0;
    }
  }

  void header(std::string_view line) {
    header_bytes += line.size();
    if (header_bytes > kMostHeaderBytes)
      fail("the head of an answer is longer than {} bytes", kMostHeaderBytes);
    while (line.ends_with('\n') || line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("HTTP/")) {  // another head: after an interim answer or a proxy's
      answer = {};
      const size_t space = line.find(' ');
      if (space != std::string_view::npos)
        answer.status = std::atoi(std::string(line.substr(space + 1, 3)).c_str());
      return;
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
    line.remove_prefix(colon + 1);
    while (line.starts_with(' ')) line.remove_prefix(1);
    answer.headers[name] = line;
  }

  void begin() {
    if (began || !answer.good()) return;
    began = true;
    if (request.begin) request.begin(answer);
  }

  void body(std::string_view bytes) {
    if (!answer.good()) {  // a page about an error, or of a redirect: nobody reads it
      body_bytes += static_cast<int64_t>(bytes.size());
      if (body_bytes > int64_t{1} << 20) fail("an answer of status {} is longer than 1 MB", answer.status);
      return;
    }
    begin();
    body_bytes += static_cast<int64_t>(bytes.size());
    if (body_bytes > request.most_bytes)
      fail("the answer is longer than the {} bytes that were expected", request.most_bytes);
    if (request.body) request.body(bytes);
  }
};

size_t on_header(char* data, size_t size, size_t count, void* self) {
  auto* transfer = static_cast<Transfer*>(self);
  return transfer->guarded(size * count, [&] { transfer->header({data, size * count}); });
}

size_t on_body(char* data, size_t size, size_t count, void* self) {
  auto* transfer = static_cast<Transfer*>(self);
  return transfer->guarded(size * count, [&] { transfer->body({data, size * count}); });
}

}  // namespace

std::string Answer::header(std::string_view name) const {
  const auto found = headers.find(name);
  return found != headers.end() ? found->second : "";
}

struct Http::State {
  explicit State(const Settings& settings)
      : token(settings.token),
        agent(settings.user_agent),
        certificates(settings.certificates),
        home(CurlUrl(settings.endpoint)) {
    static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
    if (ready == CURLE_OK) curl = curl_easy_init();
    if (curl == nullptr) fail("libcurl does not start");
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { curl_easy_cleanup(curl); }

  /// One transfer, no redirect followed. `next`: where a redirect leads.
  Answer once(const Request& request, const std::string& url, std::string& next);

  std::string token, agent, certificates;
  Origin home;
  CURL* curl = nullptr;  ///< keeps connections open
};

Answer Http::State::once(const Request& request, const std::string& url, std::string& next) {
  Transfer transfer{request, {}, 0, 0, false, nullptr};
  char message[CURL_ERROR_SIZE] = "";
  curl_slist* lines = nullptr;
  if (!token.empty() && Origin(CurlUrl(url)) == home)
    lines = curl_slist_append(lines, ("Authorization: Bearer " + token).c_str());
  const std::string range = fmt::format("{}-", request.from);
  curl_easy_reset(curl);  // connections stay
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_USERAGENT, agent.c_str());
  if (!certificates.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, certificates.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, lines);
  curl_easy_setopt(curl, CURLOPT_NOBODY, request.head ? 1L : 0L);
  if (request.from > 0) curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 256L << 10);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kSilentSeconds);
  curl_easy_setopt(curl, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, message);
  const CURLcode code = curl_easy_perform(curl);
  curl_slist_free_all(lines);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);
  if (transfer.thrown) std::rethrow_exception(transfer.thrown);
  if (code != CURLE_OK) {
    const std::string host = Origin(CurlUrl(url)).host;
    const std::string text = fmt::format("{}: {}", host.empty() ? url : host,
                                         message[0] != 0 ? message : curl_easy_strerror(code));
    if (may_pass(code)) throw NetworkError(text);
    throw Error(text);
  }
  if (!request.head) transfer.begin();  // of a body without a byte, too
  const char* location = nullptr;
  curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &location);
  next = location != nullptr ? location : "";
  return std::move(transfer.answer);
}

Http::Http(const Settings& settings) : state_(std::make_unique<State>(settings)) {}
Http::~Http() = default;

Answer Http::send(const Request& request) {
  std::string url = request.url;
  for (int redirects = 0;; ++redirects) {
    std::string next;
    Answer answer = state_->once(request, url, next);
    if (answer.status < 300 || answer.status >= 400 || !request.follow) return answer;
    if (next.empty()) fail("{}: status {} leads nowhere", request.url, answer.status);
    if (redirects == kMostRedirects) fail("{}: more than {} redirects", request.url, kMostRedirects);
    const CurlUrl there(next);
    const std::string scheme = there.part(CURLUPART_SCHEME);
    if (scheme != "https" && scheme != "http") fail("{}: a redirect to {} is no HTTP", request.url, next);
    if (scheme == "http" && url.starts_with("https://"))
      fail("{}: a redirect to {} would not be encrypted", request.url, next);
    url = next;
  }
}

Answer Http::get(const std::string& url, int64_t most_bytes, std::string& body) {
  Request request;
  request.url = url;
  request.most_bytes = most_bytes;
  request.begin = [&](const Answer&) { body.clear(); };
  request.body = [&](std::string_view bytes) { body += bytes; };
  body.clear();
  return send(request);
}

std::string escaped_path(std::string_view path) {
  std::string out;
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~/").find(c) != std::string_view::npos;
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

}  // namespace sluice::hub
