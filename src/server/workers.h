// The threads on which text is worked with: JSON, templates, tokens, parsers. Never the thread of the
// sockets, never the engine's. Nobody's functions keep those of others waiting: clients take turns, and there
// is one thread more than one of them may hold. Knows functions and names of clients.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace sluice::server {

class Workers {
 public:
  /// `threads`: for one client at most; there is one more.
  explicit Workers(int threads);
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  /// Runs what was posted, then ends.
  ~Workers();

  /// Functions throw nothing but std::bad_alloc, after which they are forgotten.
  void post(const std::string& client, std::function<void()> function);

 private:
  struct Share {
    std::deque<std::function<void()>> queue;
    int running = 0;
  };
  using Shares = std::map<std::string, Share>;

  void work();
  Shares::iterator next();

  const int most_;  ///< running functions of one client
  std::mutex mutex_;
  std::condition_variable changed_;
  Shares shares_;     ///< of clients that have functions waiting or running
  std::string last_;  ///< whose turn was last
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

/// Functions that run one after the other, in order, on whatever worker is free: a request's.
class SerialQueue : public std::enable_shared_from_this<SerialQueue> {
 public:
  /// `workers` outlives it.
  SerialQueue(Workers& workers, std::string client) : workers_(workers), client_(std::move(client)) {}
  void post(std::function<void()> function);

 private:
  void run();

  Workers& workers_;
  const std::string client_;
  std::mutex mutex_;
  std::deque<std::function<void()>> queue_;
  bool running_ = false;
};

}  // namespace sluice::server
