#include "base/threads.h"

#include <algorithm>
#include <utility>

#include "base/affinity.h"
#include "base/clock.h"

namespace sluice {
namespace {

/// Pauses between two looks at the clock.
constexpr int kPauses = 32;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Team::Signal::wait_for_other_than(unsigned old, int64_t spin_ns) {
  const auto changed = [&] { return value.load(std::memory_order_acquire) != old; };
  int64_t end = 0;
  do {
    for (int i = 0; i < kPauses; ++i) {
      if (changed()) return;
      pause();
    }
    if (end == 0) end = now_ns() + spin_ns;
  } while (now_ns() < end);
  while (!changed()) value.wait(old, std::memory_order_acquire);
}

void Team::Signal::set(unsigned next) {
  // notify_all looks for sleepers first: nothing but a load where all spin. That load must not pass the
  // store, or a waiter that goes to sleep in between would see neither.
  value.store(next, std::memory_order_seq_cst);
  value.notify_all();
}

Team::Team(int size, int64_t spin_ns) : size_(std::max(1, size)), spin_ns_(spin_ns) {
  for (int i = 1; i < size_; ++i) threads_.emplace_back([this, i] { worker_loop(i); });
  cpus_ = usable_cpus();
  if (cpus_.size() != static_cast<size_t>(size_)) cpus_.clear();
  for (size_t i = 1; i < cpus_.size(); ++i) pin(threads_[i - 1], cpus_[i]);
}

Team::~Team() {
  quit_ = true;
  round_.set(round_.value.load(std::memory_order_relaxed) + 1);
  for (auto& thread : threads_) thread.join();
}

void Team::worker_loop(int index) {
  for (unsigned seen = 0;; ++seen) {
    round_.wait_for_other_than(seen, spin_ns_);
    if (quit_) return;
    (*work_)(index);
    barrier();
  }
}

/// The system moves the caller as it likes; a worker that was pinned where the caller is now goes to where it
/// was.
void Team::make_room() {
  const int cpu = ::sched_getcpu();
  for (size_t i = 1; i < cpus_.size(); ++i) {
    if (cpus_[i] != cpu) continue;
    std::swap(cpus_[0], cpus_[i]);
    pin(threads_[i - 1], cpus_[i]);
  }
}

void Team::run(const std::function<void(int)>& work) {
  if (size_ > 1) {
    make_room();
    work_ = &work;
    round_.set(round_.value.load(std::memory_order_relaxed) + 1);
  }
  work(0);
  barrier();  // nobody may still be in `work` when it goes out of scope
}

void Team::barrier() {
  if (size_ == 1) return;
  const unsigned before = arrivals_.value.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    arrived_.store(0, std::memory_order_relaxed);
    arrivals_.set(before + 1);
    return;
  }
  arrivals_.wait_for_other_than(before, spin_ns_);
}

}  // namespace sluice
