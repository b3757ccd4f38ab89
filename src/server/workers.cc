#include "server/workers.h"

#include <utility>

namespace sluice::server {

Workers::Workers(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::post(std::function<void()> function) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(function));
  }
  changed_.notify_one();
}

void Workers::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::function<void()> function = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    function();
    function = nullptr;  // what it owns may post again
    lock.lock();
  }
}

void SerialQueue::post(std::function<void()> function) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(function));
    if (running_) return;
    running_ = true;
  }
  workers_.post([self = shared_from_this()] { self->run(); });
}

void SerialQueue::run() {
  std::unique_lock lock(mutex_);
  while (!queue_.empty()) {
    std::function<void()> function = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    function();
    function = nullptr;
    lock.lock();
  }
  running_ = false;
}

}  // namespace sluice::server
