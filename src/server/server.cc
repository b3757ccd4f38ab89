// The table of routes, and the way of a request through it: the thread of the sockets finds its route and
// refuses what may not pass; a worker runs its endpoint; what that throws becomes an answer.
#include "server/server.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/file.h"
#include "base/interruption.h"
#include "server/access.h"
#include "server/answer.h"
#include "server/body.h"
#include "server/endpoints.h"
#include "server/page.h"

namespace sluice::server {

namespace {

/// RightKey: without a key too, but not with a wrong one. Clients try their key there.
enum class Access { Public, RightKey, Key };

struct Route {
  std::string_view method, path;  ///< a path that ends in / stands for all below it
  Access access;
  Style style;
  void (*run)(const Call&);                       ///< of one model; null: see below
  void (*about)(ModelSet&, Exchange&) = nullptr;  ///< of all models; both null: the server itself answers
};

constexpr std::string_view kHealth = "/v1/health", kReady = "/ready", kLive = "/live", kMetrics = "/metrics";

/// How far a server that will stop has come.
enum class Leaving : uint8_t { No, Soon, Refuses };

constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", Access::Key, Style::OpenAi, chat_completions},
    {"POST", "/v1/completions", Access::Key, Style::OpenAi, completions},
    {"POST", "/v1/messages", Access::Key, Style::Anthropic, messages},
    {"POST", "/v1/messages/count_tokens", Access::Key, Style::Anthropic, count_tokens},
    {"POST", "/v1/responses", Access::Key, Style::OpenAi, responses},
    {"POST", "/tokenize", Access::Key, Style::OpenAi, tokenize},
    {"POST", "/detokenize", Access::Key, Style::OpenAi, detokenize},
    {"POST", "/apply-template", Access::Key, Style::OpenAi, apply_template},
    {"GET", "/v1/models", Access::RightKey, Style::OpenAi, nullptr, models},
    {"GET", "/v1/models/", Access::RightKey, Style::OpenAi, nullptr, models},
    {"POST", "/v1/models/load", Access::Key, Style::OpenAi, nullptr, load_model},
    {"POST", "/v1/models/unload", Access::Key, Style::OpenAi, nullptr, unload_model},
    {"POST", "/api/chat", Access::Key, Style::Ollama, ollama_chat},
    {"POST", "/api/generate", Access::Key, Style::Ollama, ollama_generate},
    {"POST", "/api/show", Access::Key, Style::Ollama, ollama_show},
    {"GET", "/api/tags", Access::RightKey, Style::Ollama, nullptr, ollama_tags},
    {"GET", "/api/ps", Access::RightKey, Style::Ollama, nullptr, ollama_ps},
    {"GET", "/api/version", Access::Public, Style::Ollama, nullptr, ollama_version},
    {"GET", "/props", Access::Key, Style::OpenAi, props},
    {"GET", "/tokenizer_info", Access::Key, Style::OpenAi, tokenizer_info},
    {"GET", "/slots", Access::Key, Style::OpenAi, slots},
    {"GET", "/cache", Access::Key, Style::OpenAi, cache},
    {"POST", "/cache/clear", Access::Key, Style::OpenAi, clear_cache},
    {"GET", kHealth, Access::Public, Style::OpenAi, nullptr},
    {"GET", kReady, Access::Public, Style::OpenAi, nullptr},
    {"GET", kLive, Access::Public, Style::OpenAi, nullptr},
    {"GET", kMetrics, Access::Key, Style::OpenAi, nullptr},
    {"GET", "/", Access::Public, Style::OpenAi, nullptr},
    {"GET", "/index.html", Access::Public, Style::OpenAi, nullptr},
};

/// Clients ask for these elsewhere; here a model of language answers, and says so.
constexpr std::string_view kNotHere[] = {
    "/v1/embeddings",   "/v1/rerank", "/v1/audio/",  "/v1/images/",     "/completion", "/infill",
    "/v1/fine_tuning/", "/v1/files",  "/v1/batches", "/v1/moderations", "/api/"};

/// The path as routes have it: one slash between parts and none at the end, as base URLs with a slash too
/// many make them. The routes below /v1 are known without it too.
std::string plain_path(std::string_view path) {
  std::string plain;
  for (const char c : path)
    if (c != '/' || !plain.ends_with('/')) plain += c;
  if (plain.size() > 1 && plain.ends_with('/')) plain.pop_back();
  return plain;
}

bool matches(std::string_view pattern, std::string_view path) {
  return pattern.size() > 1 && pattern.ends_with('/') ? path.starts_with(pattern) : path == pattern;
}

std::string_view method_of(const HttpRequest& request) {
  return request.method == "HEAD" ? "GET" : std::string_view(request.method);
}

/// Whoever runs the server asks, by whatever name it has.
bool is_probe(const Route& route) {
  return route.path == kHealth || route.path == kReady || route.path == kLive;
}

/// The route, or null; `methods` collects those that the path knows.
const Route* find_route(const HttpRequest& request, std::string* methods = nullptr) {
  const std::string path = plain_path(request.path), below_v1 = "/v1" + path;
  for (const Route& route : kRoutes) {
    if (!matches(route.path, path) && !matches(route.path, below_v1)) continue;
    if (route.method == method_of(request)) return &route;
    if (methods) *methods += (methods->empty() ? "" : ", ") + std::string(route.method);
  }
  return nullptr;
}

Style style_of(const HttpRequest& request) {
  const std::string path = plain_path(request.path);
  if (path.starts_with("/api/")) return Style::Ollama;
  return path.starts_with("/v1/messages") || path.starts_with("/messages") ? Style::Anthropic : Style::OpenAi;
}

bool is_loopback_host(const std::string& host) {
  return host == "127.0.0.1" || host == "localhost" || host == "::1";
}

/// Names that --host and the operator say. Over a Unix socket no page asks.
std::vector<std::string> named_hosts(const ServerOptions& options) {
  std::vector<std::string> hosts = options.hosts;
  const bool any_page = std::ranges::find(options.origins, "*") != options.origins.end();
  hosts.push_back(any_page || !options.http.unix_socket.empty() ? "*" : options.http.host);
  return hosts;
}

/// What to say where there is no route; `methods`: those that the path knows.
ApiError no_route(const HttpRequest& request, const std::string& methods) {
  if (!methods.empty()) return {405, fmt::format("{}: expected {}", request.path, methods)};
  const std::string path = plain_path(request.path), below_v1 = "/v1" + path;
  for (const std::string_view known : kNotHere)
    if (matches(known, path) || matches(known, below_v1))
      return {404, fmt::format("{} is not part of this server",
                               known == "/api/" ? std::string_view(path) : known)};
  return {404, fmt::format("{}: there is nothing here", request.path)};
}

int workers_for(int wanted) {
  if (wanted > 0) return wanted;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 2, 8);
}

HttpResponse page_response() {
  if (page().empty())
    return {200, "text/plain; charset=utf-8", "Sluice answers at /v1/chat/completions.\n", {}};
  return {200,
          "text/html; charset=utf-8",
          std::string(page()),
          {{"Cache-Control", "no-cache"},
           {"Content-Security-Policy", "frame-ancestors 'none'"},
           {"X-Content-Type-Options", "nosniff"},
           {"Referrer-Policy", "no-referrer"}}};
}

}  // namespace

struct Server::Impl {
  ServerOptions options;
  ApiKeys keys;
  Origins origins;
  Hosts hosts;
  Metrics metrics;
  PromptHistory history;
  std::unique_ptr<OneModel> one;  ///< where there is one model
  std::atomic<ModelSet*> models{nullptr};
  std::atomic<Leaving> leaving{Leaving::No};
  std::atomic<uint64_t> last_call{0};
  std::unique_ptr<Workers> workers;
  std::unique_ptr<HttpServer> http;

  explicit Impl(ServerOptions given)
      : options(std::move(given)),
        keys(options.api_keys),
        origins(options.origins, options.api_keys.empty() && is_loopback_host(options.http.host)),
        hosts(named_hosts(options)) {}

  std::optional<HttpResponse> gate(HttpRequest& request);
  void handle(const std::shared_ptr<Exchange>& exchange);
  void run(const Route& route, const Call& call);
  template <typename Work>
  static void answering(Style style, const std::shared_ptr<Exchange>& exchange, Work work);
  Access access_of(const Route& route) const;
  std::string failure() const;
  bool ready() const;
  HttpResponse probe(std::string_view path) const;
  HttpResponse all_metrics() const;
};

// The body has not been read: who may not pass need not send it.
std::optional<HttpResponse> Server::Impl::gate(HttpRequest& request) {
  metrics.http_requests.fetch_add(1, std::memory_order_relaxed);
  std::optional<ApiError> error;
  std::string methods;
  const std::optional<ApiKeys::Key> key = keys.empty() ? std::nullopt : keys.find(request);
  if (key) request.client = key->name;
  if (!origins.admits(request)) {
    error.emplace(403, fmt::format("pages of {} may not ask this server; start it with --cors {} to let them",
                                   request.header("origin"), request.header("origin")));
  } else if (request.method == "OPTIONS") {
    return HttpResponse{204, "", "", {{"Allow", "GET, POST, OPTIONS"}}};
  } else if (const Route* route = find_route(request, &methods); !route) {
    error = no_route(request, methods);
  } else if (keys.empty() && !is_probe(*route) && !hosts.admits(request)) {
    error.emplace(403,
                  fmt::format("this server is not known as {}; start it with --allowed-hosts {} if it is",
                              Hosts::name(request), Hosts::name(request)));
  } else if (access_of(*route) != Access::Public && !keys.empty() && !key &&
             (access_of(*route) == Access::Key || keys.given(request))) {
    error.emplace(401, "expected an API key of this server, as Authorization: Bearer KEY or x-api-key: KEY",
                  "", "invalid_api_key");
  } else if ((route->run || route->about) && !models.load()) {
    error.emplace(503, "the model is still loading");
  } else if (route->method == "POST" && leaving == Leaving::Refuses) {
    error.emplace(503, "the server is stopping");
  }
  if (!error) return {};
  log_refusal(options.log, request, error->status, error->what());
  HttpResponse response = error_response(style_of(request), *error);
  if (error->status == 405) response.headers.emplace_back("Allow", methods);
  return response;
}

Access Server::Impl::access_of(const Route& route) const {
  return route.path == kMetrics && options.public_metrics ? Access::Public : route.access;
}

std::string Server::Impl::failure() const {
  ModelSet* const set = models.load();
  const auto latest = set ? set->latest() : nullptr;
  return latest ? latest->engine.failure() : "";
}

bool Server::Impl::ready() const { return models.load() && failure().empty() && leaving == Leaving::No; }

// A server that loads, or stops, lives; one that has failed is to be started anew.
HttpResponse Server::Impl::probe(std::string_view path) const {
  const std::string failed = failure();
  if (!failed.empty()) return error_response(Style::OpenAi, {503, "the engine has failed: " + failed});
  if (path != kLive && !models.load())
    return error_response(Style::OpenAi, {503, "the model is still loading"});
  if (path == kReady && leaving != Leaving::No)
    return error_response(Style::OpenAi, {503, "the server is stopping"});
  return json_response({{"status", "ok"}});
}

HttpResponse Server::Impl::all_metrics() const {
  Metrics::View view;
  if (ModelSet* const set = models.load()) {
    const auto latest = set->latest();
    if (latest) view.models.push_back(latest);
    for (const ModelState& model : set->list())
      if (model.service && model.service != latest) view.models.push_back(model.service);
  }
  view.connections = http->connections();
  view.memory_bytes = options.http.memory->used();
  view.memory_limit = options.http.memory->limit();
  view.ready = ready();
  return {200, "text/plain; version=0.0.4; charset=utf-8", metrics.text(view, options.metric_names), {}};
}

void Server::Impl::handle(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  const Route* route = find_route(request);  // the gate has found it already
  ModelSet* const set = models.load();
  if (!route->run && !route->about) {
    if (is_probe(*route)) return exchange->respond(probe(route->path));
    return exchange->respond(route->path == kMetrics ? all_metrics() : page_response());
  }
  const std::optional<ApiKeys::Key> key = keys.empty() ? std::nullopt : keys.find(request);
  const std::string client = request.client;
  const auto queue = std::make_shared<SerialQueue>(*workers, client);
  const auto record = std::make_shared<RequestRecord>(options.log, history, exchange, client);
  engine::PrefixGroup group;
  if (key) group = {options.share_prefixes ? 0 : key->number, key->number};
  if (route->about)
    return queue->post(
        [=, keep = record] { answering(route->style, exchange, [&] { route->about(*set, *exchange); }); });
  const auto begin = [=, this](const std::shared_ptr<const Service>& service) {
    const Call call = {*service,
                       metrics.times(service->model_id),
                       exchange,
                       queue,
                       route->style,
                       client,
                       options.http.max_body_bytes,
                       record,
                       service,
                       ++last_call,
                       group,
                       std::make_shared<MemoryShare>(exchange->memory().sibling())};
    queue->post([this, route, call] { run(*route, call); });
  };
  if (!set->has_several()) return begin(set->latest());
  if (route->method == "GET") {  // looks at what is there, and is no reason to load anything
    if (const auto latest = set->latest()) return begin(latest);
    return exchange->respond(
        error_response(route->style, {503, "no model is loaded: a request that names one loads it"}));
  }
  queue->post([=, this] {
    answering(route->style, exchange, [&] {
      set->take(model_named(exchange->request(), options.http.max_body_bytes),
                [=](const std::shared_ptr<const Service>& service, const std::optional<ApiError>& error) {
                  if (service) return begin(service);
                  exchange->respond(error_response(route->style, *error));
                });
    });
  });
}

void Server::Impl::run(const Route& route, const Call& call) {
  answering(route.style, call.exchange, [&] {
    try {
      route.run(call);
    } catch (...) {
      call.work->set(0);  // whoever has the answer may ask again at once
      throw;
    }
  });
}

/// What work throws becomes the answer.
template <typename Work>
void Server::Impl::answering(Style style, const std::shared_ptr<Exchange>& exchange, Work work) {
  const auto answer = [&](const ApiError& error) { exchange->respond(error_response(style, error)); };
  const Interruptible until_gone(exchange->gone_flag());
  try {
    work();
  } catch (const Interrupted&) {  // nobody is there to be answered
  } catch (const ApiError& error) {
    answer(error);
  } catch (const Error& error) {
    answer(bad_request(error));
  } catch (const std::bad_alloc&) {
    answer(out_of_memory());
  } catch (const std::exception& error) {
    answer({500, fmt::format("internal error: {}", error.what())});
  }
}

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {
  Impl& impl = *impl_;
  impl.workers = std::make_unique<Workers>(workers_for(impl.options.workers));
  HttpHooks hooks;
  hooks.gate = [&impl](HttpRequest& head) { return impl.gate(head); };
  hooks.handle = [&impl](const std::shared_ptr<Exchange>& exchange) { impl.handle(exchange); };
  hooks.headers = [&impl](const HttpRequest& head) {
    Headers headers = impl.origins.headers(head);
    headers.emplace_back("x-request-id", new_id("req_"));
    return headers;
  };
  hooks.answering = [&impl](int status) {
    impl.metrics.http_responses[static_cast<size_t>(status / 100)].fetch_add(1, std::memory_order_relaxed);
  };
  hooks.error = [&impl](const HttpRequest& request, int status, const std::string& message) {
    log_refusal(impl.options.log, request, status, message);
    return error_response(style_of(request), ApiError(status, message));
  };
  impl.http = std::make_unique<HttpServer>(impl.options.http, std::move(hooks));
  impl.http->start();
}

Server::~Server() {
  impl_->http->stop();  // the hooks use it: first they end, then it goes
  impl_->http.reset();
  impl_->workers.reset();
}

const std::string& Server::address() const { return impl_->http->address(); }
uint16_t Server::port() const { return impl_->http->port(); }
void Server::ready(const Service& service) {
  impl_->one = std::make_unique<OneModel>(service);
  ready(*impl_->one);
}
void Server::ready(ModelSet& models) { impl_->models = &models; }
void Server::leave() {
  Leaving staying = Leaving::No;
  impl_->leaving.compare_exchange_strong(staying, Leaving::Soon);
}
void Server::refuse() {
  impl_->leaving = Leaving::Refuses;
  impl_->http->let_go();
}
bool Server::drain(std::chrono::milliseconds at_most) { return impl_->http->drain(at_most); }

std::vector<std::string> read_api_keys(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<std::string> keys;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    line = line.substr(0, line.find('#'));
    while (!line.empty() && (line.back() == ' ' || line.back() == '\t' || line.back() == '\r'))
      line.remove_suffix(1);
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
    if (!line.empty()) keys.emplace_back(line);
    begin = end + 1;
  }
  if (keys.empty()) fail("{}: there is no key in it; expected one a line", path);
  return keys;
}

}  // namespace sluice::server
