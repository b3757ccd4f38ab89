// A team of threads that enters a function together and meets at barriers inside it.
// A step of a Program is one such function: one hand-over a step, one barrier an op.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sluice {

class Team {
 public:
  /// `size` workers, the calling thread of run() included; at least 1.
  explicit Team(int size);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }
  /// Calls work(worker) on every worker, 0 being the calling thread, and returns when all have returned.
  /// The work must not throw.
  void run(const std::function<void(int)>& work);
  /// Inside run(): waits until every worker is here. Spins first, because ops take microseconds, then sleeps:
  /// on a busy machine a waiter that holds its core keeps the one it waits for from running.
  void barrier();

 private:
  void worker_loop(int index);

  int size_;
  std::atomic<int> arrived_{0};
  std::atomic<unsigned> generation_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  const std::function<void(int)>* work_ = nullptr;
  unsigned round_ = 0;
  bool quit_ = false;
  std::vector<std::thread> threads_;
};

/// The part [first, last) of `count` items that worker `index` of `workers` takes, in whole groups of
/// `group`.
struct Slice {
  int64_t first, last;
};
inline Slice slice_of(int64_t count, int index, int workers, int64_t group = 1) {
  const int64_t groups = (count + group - 1) / group;
  const int64_t first = groups * index / workers * group;
  const int64_t last = groups * (index + 1) / workers * group;
  return {first, last < count ? last : count};
}

}  // namespace sluice
