// The threads on which text is worked with: JSON, templates, tokens, parsers. Never the thread of the
// sockets, never the engine's. Nobody's functions keep those of others waiting: clients take turns, there is
// one thread more than one of them may hold, and a function that takes long goes on in the background while
// another thread takes the place of its own. Knows functions and names of clients.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace sluice::server {

class Workers {
 public:
  /// Longer than nearly all functions take; shorter than what people notice.
  static constexpr std::chrono::milliseconds kPatience{20};

  /// `threads`: for one client at most; there is one more, and as many again while functions take longer than
  /// `patience`.
  explicit Workers(int threads, std::chrono::milliseconds patience = kPatience);
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
  struct Worker {
    std::thread thread;
    int64_t id = 0;              ///< thread_id()
    int64_t since_ns = 0;        ///< when its function began; 0: it has none
    bool in_background = false;  ///< ends with its function, since it cannot come back
    bool has_ended = false;
  };

  void start_worker();
  void work(Worker& worker);
  Shares::iterator next();
  void watch();
  bool forget_ended();
  bool make_room();

  const int most_;  ///< running functions of one client
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_, watcher_changed_;
  Shares shares_;     ///< of clients that have functions waiting or running
  std::string last_;  ///< whose turn was last
  bool ending_ = false;
  bool watched_ = false;  ///< the watcher looks at the workers again, though nobody tells it to
  bool begun_ = false;    ///< a function, since the watcher looked
  std::list<Worker> workers_;
  std::thread watcher_;
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
