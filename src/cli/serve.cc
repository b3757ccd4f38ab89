// sluice serve: the HTTP server with its model, from the first connection to the last answer. What it reports
// goes to standard error.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <future>
#include <map>
#include <memory>

#include "base/background.h"
#include "base/clock.h"
#include "base/error.h"
#include "cli/assemble.h"
#include "cli/checked_options.h"
#include "cli/commands.h"
#include "cli/hub_model.h"
#include "cli/loading.h"
#include "cli/model_shelf.h"
#include "cli/output.h"
#include "cli/service_manager.h"
#include "cli/serving_model.h"
#include "server/server.h"

namespace sluice::cli {
namespace {

using std::chrono::milliseconds;

struct ServeOptions : ServingOptions {
  server::ServerOptions server;
  std::string key_file;
  std::vector<std::string> keys;
  std::vector<std::string> models, aliases, folders;
  size_t most_models = 0;
  double idle_unload = 0;
  double drain_seconds = 30, drain_delay = 0;
  size_t max_memory = server::Memory::kDefault;
  bool exit_on_failure = true;
};

constexpr milliseconds kLook{500};  ///< how often the engine is looked at

/// SIGINT and SIGTERM as something to wait for. To be made before any thread.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  /// Whether one came within this time.
  bool wait(milliseconds time) const {
    const timespec at_most{time.count() / 1000, time.count() % 1000 * 1'000'000};
    return sigtimedwait(&set_, nullptr, &at_most) > 0;
  }

 private:
  sigset_t set_{}, before_{};
};

/// A request's line; one write, so that lines of several threads stay whole.
void write_log(std::string_view line) { note("{}\n", line); }

/// Every connection takes a file descriptor.
void allow_many_connections() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

bool is_local(const server::HttpOptions& http) {
  return !http.unix_socket.empty() || http.host == "127.0.0.1" || http.host == "localhost" ||
         http.host == "::1";
}

/// Loads beside the server, which answers meanwhile that it is loading. Null: a signal came first.
std::unique_ptr<ServingModel> load(const CLI::App& command, const ServeOptions& options,
                                   const StopSignals& signals, ServiceManager& manager) {
  auto loading =
      std::async(std::launch::async, [&] { return std::make_unique<ServingModel>(command, options); });
  while (loading.wait_for(milliseconds(0)) != std::future_status::ready) {
    manager.loading();
    if (signals.wait(milliseconds(50))) {
      note("sluice: stopped while loading\n");
      ::_exit(0);  // loading cannot be interrupted, and there is nothing to lose
    }
  }
  return loading.get();
}

/// What a server serves from, as it is stopped.
struct Engines {
  std::function<int64_t()> at_work;
  std::function<void()> stop;
  std::function<int64_t()> steps;        ///< that were done; empty: nobody counts them
  std::function<std::string()> failure;  ///< why nothing runs any more; empty: all is well
};

int64_t ns_of(double seconds) { return static_cast<int64_t>(1e9 * seconds); }

/// First it only says that it will stop; then it takes no more requests, but still tells how it is, until
/// those that run have ended or their time is over. A second signal ends either.
void end_answers(server::Server& server, const ServeOptions& options, const Engines& engines,
                 const StopSignals& signals) {
  server.leave();
  if (options.drain_delay > 0) {
    note("sluice: stopping in {:g} s; until then requests are taken\n", options.drain_delay);
    if (signals.wait(milliseconds(static_cast<int64_t>(1000 * options.drain_delay)))) return;
  }
  note("sluice: stopping; {} requests have up to {:g} s to end\n", engines.at_work(), options.drain_seconds);
  server.refuse();
  const int64_t end_ns = now_ns() + ns_of(options.drain_seconds);
  while (now_ns() < end_ns && engines.at_work() > 0)
    if (signals.wait(milliseconds(50))) return;
  while (now_ns() < end_ns)
    if (server.drain(milliseconds(250)) || signals.wait(milliseconds(0))) return;
}

/// Serves until a signal comes; then lets running answers end, for some time. A second signal ends them at
/// once. Throws Error when an engine has failed, unless it is to serve on.
void serve_until_signal(server::Server& server, const ServeOptions& options, const Engines& engines,
                        const StopSignals& signals, ServiceManager& manager) {
  if (!options.server.api_keys.empty()) {
    note("  keys     {}\n", options.server.api_keys.size());
  } else if (!is_local(options.server.http)) {
    note("  keys     none: whoever reaches this address may ask (--api-key-file)\n");
  }
  manager.ready();
  while (!signals.wait(kLook)) {
    const std::string failure = options.exit_on_failure ? engines.failure() : "";
    if (!failure.empty()) {
      server.drain(milliseconds(2000));  // who waited is told why
      fail("the engine has failed: {}", failure);
    }
    const bool busy = engines.steps && engines.at_work() > 0;
    manager.look(busy, busy ? engines.steps() : 0);
  }
  manager.stopping();
  end_answers(server, options, engines, signals);
  engines.stop();  // what still ran is told so
  server.drain(milliseconds(2000));
  note("sluice: stopped\n");
}

void serve_one(const CLI::App& command, const ServeOptions& options, const StopSignals& signals) {
  std::unique_ptr<ServingModel> model;  // goes after the server
  ServiceManager manager;
  server::Server server(options.server);
  note("sluice: {} is loading\n", server.address());
  model = load(command, options, signals, manager);
  // Whatever happens from here on: the engine stops before the server goes.
  const std::shared_ptr<void> last(nullptr, [&model](void*) { model->engine().stop(); });
  server.ready(model->service());
  note("sluice: ready at {}\n{}", server.address(), terminal_safe(model->description()));
  const auto at_work = [&] {
    const engine::EngineStats stats = model->engine().stats();
    return int64_t{stats.running} + stats.waiting;
  };
  const Engines engines{at_work, [&] { model->engine().stop(); },
                        [&] { return int64_t{model->engine().stats().steps_total}; },
                        [&] {
                          const std::string failure = model->engine().failure();
                          return failure.empty() ? rank_failure() : failure;  // it may not have stepped since
                        }};
  serve_until_signal(server, options, engines, signals, manager);
}

/// All models that the flags name.
std::vector<ShelfModel> shelf_models(const ServeOptions& options) {
  std::vector<ShelfModel> models;
  for (size_t i = 0; i < options.models.size(); ++i) {
    const std::string& model = options.models[i];
    const bool hub = model.starts_with(kHubScheme);
    std::string name = hub ? model.substr(std::string_view(kHubScheme).size()) : model_file_name(model);
    if (i < options.aliases.size()) name = options.aliases[i];
    std::error_code unknown;
    const auto bytes = hub ? 0 : std::filesystem::file_size(model, unknown);
    if (unknown) throw UsageError(fmt::format("{}: {}", model, unknown.message()));
    models.push_back({std::move(name), model, static_cast<int64_t>(bytes)});
  }
  for (const std::string& folder : options.folders)
    std::ranges::move(models_in(folder), std::back_inserter(models));
  return models;
}

void serve_several(const CLI::App& command, const ServeOptions& options, const StopSignals& signals) {
  const auto make = [&](const ShelfModel& model, bool whole, const program::Progress& progress) {
    ServingOptions one = options;
    one.model = model.path;
    one.alias = model.id;
    return std::make_unique<ServingModel>(command, one, progress, whole);
  };
  ModelShelf shelf(shelf_models(options), {options.most_models, options.idle_unload}, make,
                   [](const std::string& line) { note("sluice: {}\n", terminal_safe(line)); });
  server::Server server(options.server);
  const std::shared_ptr<void> last(nullptr, [&shelf](void*) { shelf.stop(); });
  server.ready(shelf);
  note("sluice: ready at {}\n", server.address());
  for (const server::ModelState& model : shelf.list()) note("  model    {}\n", terminal_safe(model.id));
  const auto failure = [&] {
    const auto latest = shelf.latest();
    return latest ? latest->engine.failure() : std::string();
  };
  ServiceManager manager;
  serve_until_signal(server, options, {[&] { return shelf.at_work(); }, [&] { shelf.stop(); }, {}, failure},
                     signals, manager);
}

void serve(const CLI::App& command, const ServeOptions& given) {
  ServeOptions options = given;
  if (!options.key_file.empty()) options.server.api_keys = server::read_api_keys(options.key_file);
  for (const std::string& key : options.keys) {
    if (key.empty()) throw UsageError("--api-key: a key is empty");
    options.server.api_keys.push_back(key);
  }
  share_heaps();
  const bool several = options.models.size() > 1 || !options.folders.empty();
  if (several && options.ranks.several())
    throw UsageError(std::string(options.ranks.flag()) + ": is for one model; several were named");
  if (several && !options.events.endpoint.empty())
    throw UsageError("--kv-events: of one model; start a server for each");
  if (!options.models.empty()) options.model = options.models.front();
  if (follows(options.ranks, options.rank_model())) return;
  const StopSignals signals;
  allow_many_connections();
  options.server.log.write = write_log;
  options.server.http.memory = std::make_shared<server::Memory>(options.max_memory);
  if (several) return serve_several(command, options, signals);
  if (!options.aliases.empty()) options.alias = options.aliases.front();
  serve_one(command, options, signals);
}

void add_models(CLI::App& command, ServeOptions& options) {
  add_models_option(
      command, options.models,
      "GGUF file; without it the bundled model; may be given again: a request names one of several, and "
      "it is loaded then");
  command
      .add_option("--alias", options.aliases,
                  "the model's name for clients; without it the file's; of several models one name each, in "
                  "their order")
      ->allow_extra_args(false)
      ->delimiter(',');
  command.add_option("--models-dir", options.folders, "every GGUF model in this folder; may be given again")
      ->allow_extra_args(false);
  command
      .add_option("--models-max", options.most_models,
                  "of several models so many loaded at once, at most; 0: as many as fit into memory")
      ->capture_default_str();
  command
      .add_option("--idle-unload", options.idle_unload,
                  "of several models, seconds after which one leaves memory that nobody asks for; 0: never")
      ->check(number_range(0.0, 1e9))
      ->capture_default_str();
}

/// What is wrong with an origin: browsers send a scheme and a host, and nothing behind them. Empty: nothing.
std::string origin_problem(const std::string& text) {
  const size_t scheme = text.find("://");
  const bool is_origin = scheme != std::string::npos && scheme > 0 && scheme + 3 < text.size() &&
                         text.find('/', scheme + 3) == std::string::npos;
  if (is_origin || text == "*" || text == "null") return "";
  return fmt::format("{}: expected an origin, as https://chat.example, or *", text);
}

void add_network(CLI::App& command, ServeOptions& options) {
  server::HttpOptions& http = options.server.http;
  command.add_option("--host", http.host, "address to listen at; 0.0.0.0: all")->capture_default_str();
  command.add_option("--port", http.port, "port; 0: any that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command.add_option("--unix-socket", http.unix_socket, "listen at this path in place of host and port");
  auto* certificate = command.add_option("--tls-cert", http.certificate, "certificate chain (PEM): HTTPS");
  auto* key = command.add_option("--tls-key", http.key, "the certificate's key (PEM)")->needs(certificate);
  certificate->needs(key);
  command.add_option("--api-key-file", options.key_file, "file with the keys that may ask, one a line");
  command
      .add_option("--api-key", options.keys,
                  "a key that may ask, or several between commas; others on this machine can see it: a file "
                  "is better")
      ->allow_extra_args(false)
      ->delimiter(',');
  command
      .add_option("--cors", options.server.origins,
                  "origin of web pages that may ask, or *; may be given again")
      ->check(origin_problem)
      ->allow_extra_args(false);
  command
      .add_option("--allowed-hosts", options.server.hosts,
                  "name that this server is reached by, where it has no keys, beside addresses and names "
                  "without a dot; *: any; may be given again")
      ->allow_extra_args(false);
  command.add_flag("--share-prefixes", options.server.share_prefixes,
                   "cached prompts serve all keys, not only the one that brought them: faster, but how fast "
                   "tells whether others asked the same");
  command.add_option("--max-connections", http.max_connections, "connections at once")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  add_size_option(
      command, "--max-body", [&http](int64_t bytes) { http.max_body_bytes = static_cast<size_t>(bytes); },
      "of a request's body, as 64M")
      ->default_str(std::to_string(http.max_body_bytes));
  add_size_option(
      command, "--max-memory", [&options](int64_t bytes) { options.max_memory = static_cast<size_t>(bytes); },
      "of what requests hold together, half of it a client; more are refused (503)", int64_t{1} << 20)
      ->default_str(std::to_string(options.max_memory));
  command
      .add_option("--on-failure", options.exit_on_failure,
                  "when the model's device fails: exit (for a service manager to start anew), or serve on, "
                  "with 503")
      ->transform(CLI::CheckedTransformer(std::map<std::string, bool>{{"exit", true}, {"serve", false}}))
      ->default_str("exit");
  options.server.log.level = server::LogLevel::Requests;
  command
      .add_option(
          "--log", options.server.log.level,
          "lines on standard error: off, requests (one each; never texts or keys), debug (health checks "
          "and the like too), cache (and how far each prompt was found in the cache, with a few words of "
          "where it parts from an earlier one)")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, server::LogLevel>{{"off", server::LogLevel::Off},
                                                  {"requests", server::LogLevel::Requests},
                                                  {"debug", server::LogLevel::Debug},
                                                  {"cache", server::LogLevel::Cache}}));
  command
      .add_option("--drain", options.drain_seconds, "seconds that running answers get when the server stops")
      ->check(number_range(0.0, 86400.0))
      ->capture_default_str();
  command
      .add_option(
          "--drain-delay", options.drain_delay,
          "seconds before that in which /ready says 503 and requests are taken as ever, for routers that "
          "learn late that the server stops")
      ->check(number_range(0.0, 86400.0))
      ->capture_default_str();
}

void add_metrics(CLI::App& command, ServeOptions& options) {
  using Names = server::MetricNames;
  command
      .add_option("--metrics-names", options.server.metric_names,
                  "how /metrics calls things: sluice; vllm, as routers and dashboards know them; or both")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Names>{
          {"sluice", Names::Sluice}, {"vllm", Names::Vllm}, {"both", Names::Both}}))
      ->default_str("both");
  command.add_flag("--metrics-without-key", options.server.public_metrics,
                   "/metrics needs no API key, for routers that have none");
}

}  // namespace

void add_serve(CLI::App& app) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP: OpenAI's and Anthropic's APIs");
  add_models(*command, *options);
  command
      ->add_option("-c,--ctx-size", options->context,
                   "context of a request in tokens; 0: as much of the model's own as fits")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->add_option("--parallel", options->parallel, "requests at once; more wait")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--cache-tokens", options->cache_tokens,
                   "tokens in the cache, all requests and remembered prompts together; 0: several contexts, "
                   "if they fit")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command
      ->add_option(
          "--max-itl", options->max_itl_ms,
          "milliseconds between two tokens of an answer, while others' prompts are read; 0: 1000 on a "
          "CPU, 100 on a GPU")
      ->check(number_range(0.0, 1e6))
      ->capture_default_str();
  command
      ->add_option("-u,--rows", options->rows,
                   "rows of prompts and answers a step at most; 0: 1024 on a GPU, on a CPU as many as take 5 "
                   "s, 512 to "
                   "2048")
      ->check(CLI::Range(0, 1 << 16))
      ->capture_default_str();
  command->add_option("--max-waiting", options->max_waiting, "requests that wait; more are refused")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("-t,--threads", options->threads, "threads; 0: all that are usable")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--backend", options->backend, kBackendHelp)->capture_default_str();
  command
      ->add_option("--reasoning-budget", options->thinking_budget,
                   "tokens of reasoning, then the model has to answer; -1: no limit")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str();
  add_draft_options(*command, options->drafts);
  command->add_flag("--trust-user-tokens", options->trust_user_tokens,
                    "tags in users' and tools' words (<think>, <tool_call>) are the model's tags");
  add_invariant_option(*command, options->batch_invariant);
  command->add_flag("--force", options->force, "load even when memory is too small");
  add_loading_option(*command, options->no_repack);
  add_gpu_memory_option(*command, options->gpu);
  add_rank_options(*command, options->ranks);
  add_cache_option(*command, options->cache);
  add_page_cache_options(*command, options->pages);
  add_sampling_options(*command, *options);
  add_kv_events_options(*command, options->events);
  add_network(*command, *options);
  add_metrics(*command, *options);
  command->footer(
      "Endpoints: POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, "
      "/v1/messages/count_tokens,\n"
      "/tokenize, /detokenize, /apply-template, /cache/clear, Ollama's /api/chat, /api/generate, /api/show; "
      "GET "
      "/v1/models,\n"
      "/api/tags, /api/ps, /health, /ready, /live, /props, /slots, /cache, /metrics; a web "
      "page at "
      "/.\n"
      "Requests may set sampling themselves; the flags, or the model file, say what holds where they do "
      "not.\n"
      "SIGTERM and Ctrl-C end it after the running answers, a second one at once. docs/serving.md has more.");
  command->callback([command, options] { serve(*command, *options); });
}

}  // namespace sluice::cli
