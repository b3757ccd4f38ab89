#include "base/threads.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr int kSpins = 2000;  // some tens of microseconds: as long as a small op takes

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Team::Team(int size) : size_(std::max(1, size)) {
  for (int i = 1; i < size_; ++i) threads_.emplace_back([this, i] { worker_loop(i); });
}

Team::~Team() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Team::worker_loop(int index) {
  unsigned seen = 0;
  while (true) {
    const std::function<void(int)>* work = nullptr;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return quit_ || round_ != seen; });
      if (quit_) return;
      seen = round_;
      work = work_;
    }
    (*work)(index);
    barrier();
  }
}

void Team::run(const std::function<void(int)>& work) {
  if (size_ > 1) {
    {
      const std::lock_guard lock(mutex_);
      work_ = &work;
      ++round_;
    }
    wake_.notify_all();
  }
  work(0);
  barrier();  // nobody may still be in `work` when it goes out of scope
}

void Team::barrier() {
  if (size_ == 1) return;
  const unsigned generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    generation_.notify_all();
    return;
  }
  for (int spin = 0; spin < kSpins; ++spin) {
    if (generation_.load(std::memory_order_acquire) != generation) return;
    pause();
  }
  while (generation_.load(std::memory_order_acquire) == generation) generation_.wait(generation);
}

}  // namespace sluice
