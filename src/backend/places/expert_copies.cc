#include "backend/places/expert_copies.h"

#include <exception>
#include <utility>

#include "base/background.h"
#include "base/check.h"

namespace sluice::backend::places {

ExpertCopies::ExpertCopies(std::function<void(const Swap&)> copy)
    : copy_(std::move(copy)), thread_([this] { work(); }) {}

ExpertCopies::~ExpertCopies() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool ExpertCopies::idle() {
  const std::lock_guard lock(mutex_);
  return waiting_.empty() && !busy_ && !failed_;
}

void ExpertCopies::begin(std::span<const Swap> swaps) {
  {
    const std::lock_guard lock(mutex_);
    CHECK(waiting_.empty() && !busy_, "copies on their way");
    waiting_.assign(swaps.rbegin(), swaps.rend());
  }
  changed_.notify_all();
}

void ExpertCopies::work() {
  to_background(thread_id());  // a core that computes is worth more
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
    if (ends_) return;
    const Swap swap = waiting_.back();
    waiting_.pop_back();
    busy_ = true;
    const bool tries = !failed_;
    lock.unlock();
    bool arrived = false;
    try {
      if (tries) copy_(swap), arrived = true;
    } catch (const std::exception&) {  // the model runs without the copy
    }
    lock.lock();
    busy_ = false;
    failed_ = failed_ || !arrived;
    ended_.push_back({swap, arrived});
  }
}

}  // namespace sluice::backend::places
