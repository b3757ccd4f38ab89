// The server: connections, routes, keys and endpoints around a model. It answers from the start on, most of
// it with "still loading" until there is a model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/http.h"
#include "server/metrics.h"
#include "server/model_set.h"
#include "server/request_log.h"
#include "server/service.h"

namespace sluice::server {

struct ServerOptions {
  HttpOptions http;
  std::vector<std::string> api_keys;  ///< none: everybody may
  std::vector<std::string> origins;   ///< web pages that may ask; "*": any
  std::vector<std::string> hosts;     ///< names that it is reached by, where there are no keys; "*": any
  bool share_prefixes = false;        ///< cached prompts of one key serve the others, too, by whole pages
  MetricNames metric_names = MetricNames::Both;
  bool public_metrics = false;  ///< /metrics needs no key
  int workers = 0;              ///< threads for text; 0: by the machine
  Log log;                      ///< of requests
};

class Server {
 public:
  /// Listens. Throws Error.
  explicit Server(ServerOptions options);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  /// Closes every connection. The engine must have been stopped: nothing may still be at work for a client.
  ~Server();

  const std::string& address() const;
  uint16_t port() const;
  /// From now on there is a model, or there are several. They outlive the server.
  void ready(const Service& service);
  void ready(ModelSet& models);
  /// The server will stop: GET /ready says so, to whoever sends requests; they are taken as before.
  void leave();
  /// Takes no more requests to the model, and says so; the others are answered.
  void refuse();
  /// Takes no more connections and requests; whether all answers are out in time.
  bool drain(std::chrono::milliseconds at_most);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The keys of a file: one a line; empty lines and what follows a # are passed over. Throws Error.
std::vector<std::string> read_api_keys(const std::string& path);

}  // namespace sluice::server
