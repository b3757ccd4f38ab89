// The threads on which text is worked with: JSON, templates, tokens, parsers. Never the thread of the
// sockets, never the engine's. Knows functions and nothing else.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace sluice::server {

class Workers {
 public:
  explicit Workers(int threads);
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  /// Runs what was posted, then ends.
  ~Workers();

  /// Functions throw nothing.
  void post(std::function<void()> function);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

/// Functions that run one after the other, in order, on whatever worker is free: a request's.
class SerialQueue : public std::enable_shared_from_this<SerialQueue> {
 public:
  /// `workers` outlives it.
  explicit SerialQueue(Workers& workers) : workers_(workers) {}
  void post(std::function<void()> function);

 private:
  void run();

  Workers& workers_;
  std::mutex mutex_;
  std::deque<std::function<void()>> queue_;
  bool running_ = false;
};

}  // namespace sluice::server
