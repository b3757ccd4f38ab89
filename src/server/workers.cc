#include "server/workers.h"

#include <algorithm>
#include <new>
#include <utility>

namespace sluice::server {

Workers::Workers(int threads) : most_(threads) {
  for (int i = 0; i <= threads; ++i) threads_.emplace_back([this] { work(); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::post(const std::string& client, std::function<void()> function) {
  {
    const std::lock_guard lock(mutex_);
    const auto share = shares_.try_emplace(client).first;
    try {
      share->second.queue.push_back(std::move(function));
    } catch (const std::bad_alloc&) {
      if (share->second.running == 0 && share->second.queue.empty()) shares_.erase(share);
      throw;
    }
  }
  changed_.notify_one();
}

// The client whose turn it is; the end: nobody has anything that may run now.
Workers::Shares::iterator Workers::next() {
  const auto may_run = [this](const auto& share) {
    return !share.second.queue.empty() && share.second.running < most_;
  };
  const auto from = shares_.upper_bound(last_);
  const auto found = std::find_if(from, shares_.end(), may_run);
  if (found != shares_.end()) return found;
  const auto wrapped = std::find_if(shares_.begin(), from, may_run);
  return wrapped == from ? shares_.end() : wrapped;
}

void Workers::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    auto share = shares_.end();
    changed_.wait(lock, [&] {
      share = next();
      return share != shares_.end() || (ending_ && shares_.empty());
    });
    if (share == shares_.end()) return;
    last_ = share->first;
    std::function<void()> function = std::move(share->second.queue.front());
    share->second.queue.pop_front();
    ++share->second.running;
    lock.unlock();
    try {
      function();
    } catch (const std::bad_alloc&) {  // costs whoever posted it
    }
    function = nullptr;  // what it owns may post again
    lock.lock();
    const bool held_back = share->second.running-- == most_ && !share->second.queue.empty();
    if (share->second.running == 0 && share->second.queue.empty()) shares_.erase(share);
    if (held_back || (ending_ && shares_.empty())) changed_.notify_all();
  }
}

void SerialQueue::post(std::function<void()> function) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(function));
    if (running_) return;
    running_ = true;
  }
  try {
    workers_.post(client_, [self = shared_from_this()] { self->run(); });
  } catch (const std::bad_alloc&) {  // the next function tries again
    const std::lock_guard lock(mutex_);
    running_ = false;
    throw;
  }
}

void SerialQueue::run() {
  std::unique_lock lock(mutex_);
  while (!queue_.empty()) {
    std::function<void()> function = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    try {
      function();
    } catch (const std::bad_alloc&) {  // those behind it run all the same
    }
    function = nullptr;
    lock.lock();
  }
  running_ = false;
}

}  // namespace sluice::server
