#include "server/workers.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "base/background.h"
#include "base/clock.h"

namespace sluice::server {

Workers::Workers(int threads, std::chrono::milliseconds patience) : most_(threads), patience_(patience) {
  const std::lock_guard lock(mutex_);
  for (int i = 0; i <= most_; ++i) start_worker();
  watcher_ = std::thread([this] { watch(); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  watcher_changed_.notify_all();
  watcher_.join();  // nobody else starts and forgets workers
  for (Worker& worker : workers_) worker.thread.join();
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

void Workers::start_worker() {
  Worker& worker = workers_.emplace_back();
  try {
    worker.thread = std::thread([this, &worker] { work(worker); });
  } catch (...) {
    workers_.pop_back();
    throw;
  }
}

void Workers::work(Worker& worker) {
  std::unique_lock lock(mutex_);
  worker.id = thread_id();
  while (!worker.in_background || ending_) {
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
    worker.since_ns = now_ns();
    begun_ = true;
    if (!std::exchange(watched_, true)) watcher_changed_.notify_one();
    lock.unlock();
    try {
      function();
    } catch (const std::bad_alloc&) {  // costs whoever posted it
    }
    function = nullptr;  // what it owns may post again
    lock.lock();
    worker.since_ns = 0;
    const bool held_back = share->second.running-- == most_ && !share->second.queue.empty();
    if (share->second.running == 0 && share->second.queue.empty()) shares_.erase(share);
    if (held_back || (ending_ && shares_.empty())) changed_.notify_all();
  }
  worker.has_ended = true;
}

// A thread of its own, since none that was set back may start others: they would be set back as well.
void Workers::watch() {
  std::unique_lock lock(mutex_);
  const auto ending = [this] { return ending_; };
  while (!ending_) {
    watcher_changed_.wait(lock, [this] { return ending_ || watched_; });
    watcher_changed_.wait_for(lock, patience_, ending);
    const bool have_ended = forget_ended();
    watched_ = make_room();
    if (!have_ended) continue;
    lock.unlock();
    give_back_freed_memory();  // of the long functions that ended
    lock.lock();
  }
}

bool Workers::forget_ended() {
  const size_t ended = std::erase_if(workers_, [](Worker& worker) {
    if (worker.has_ended) worker.thread.join();  // at once: it needs nothing any more
    return worker.has_ended;
  });
  return ended > 0;
}

// Sets back who takes long and starts others in their place. Whether there is anything to be watched further.
bool Workers::make_room() {
  const int64_t long_ago = now_ns() - std::chrono::nanoseconds(patience_).count();
  int at_hand = 0;
  bool busy = std::exchange(begun_, false);
  for (Worker& worker : workers_) {
    if (!worker.in_background && worker.since_ns != 0 && worker.since_ns <= long_ago) {
      worker.in_background = true;
      to_background(worker.id);
    }
    at_hand += worker.in_background ? 0 : 1;
    busy = busy || worker.since_ns != 0;
  }
  const int threads = most_ + 1;
  try {
    for (; at_hand < threads && workers_.size() < size_t{2} * static_cast<size_t>(threads); ++at_hand)
      start_worker();
  } catch (const std::system_error&) {  // no more threads for now: those in the background come to an end
  } catch (const std::bad_alloc&) {
  }
  return busy || at_hand < threads;
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
