// A team of threads that enters a function together and meets at barriers inside it.
// A step of a Program is one such function: one hand-over a step, one barrier where an op needs what others
// made.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace sluice {

class Team {
 public:
  /// Longer than a small op or the sampling of a token takes, and than a sleeper's way back.
  static constexpr int64_t kSpinNs = 50'000;

  /// `size` workers, the calling thread of run() included; at least 1. A team of as many workers as there are
  /// CPUs in the affinity mask has its own threads on one CPU each, and none on the caller's, which is left
  /// as it is.
  /// spin_ns: how long who waits spins before it sleeps.
  explicit Team(int size, int64_t spin_ns = kSpinNs);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }
  /// Calls work(worker) on every worker, 0 being the calling thread, and returns when all have returned.
  /// The work must not throw.
  void run(const std::function<void(int)>& work);
  /// Inside run(): waits until every worker is here. Who waits spins first, because ops take microseconds,
  /// then sleeps: on a busy machine a waiter that holds its core keeps the one it waits for from running.
  void barrier();

 private:
  /// A number that waiters watch.
  struct Signal {
    std::atomic<unsigned> value{0};
    void wait_for_other_than(unsigned old, int64_t spin_ns);
    void set(unsigned next);
  };

  void worker_loop(int index);
  void make_room();

  int size_;
  int64_t spin_ns_;
  std::vector<int> cpus_;        // [size] when pinned: each worker's, the caller's first
  alignas(64) Signal round_;     // of run(): work_ or quit_ are new
  alignas(64) Signal arrivals_;  // of barrier(): one more round of arrivals is complete
  std::atomic<int> arrived_{0};  // beside what its waiters watch: a meeting of two moves one cache line
  const std::function<void(int)>* work_ = nullptr;
  bool quit_ = false;
  std::vector<std::thread> threads_;
};

/// The part [first, last) of `count` items that worker `index` of `workers` takes, in whole groups of
/// `group`; parts differ by one group at most. The same arguments always give the same part, so that what a
/// worker touches once stays its own: weights lie in its node's memory when it is the one that packs them.
struct Slice {
  int64_t first, last;
};
inline Slice slice_of(int64_t count, int index, int workers, int64_t group = 1) {
  const int64_t groups = (count + group - 1) / group;
  const int64_t first = groups * index / workers * group;
  const int64_t last = groups * (index + 1) / workers * group;
  return {first < count ? first : count, last < count ? last : count};
}

}  // namespace sluice
