// Brings experts to their slots while steps run: a thread of its own, so that nobody waits for a copy.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "backend/places/expert_cache.h"

namespace sluice::backend::places {

class ExpertCopies {
 public:
  /// copy: puts an expert to its slot, and throws Error where it cannot. After a failure nothing is copied
  /// any more: what has a copy keeps it.
  explicit ExpertCopies(std::function<void(const Swap&)> copy);
  ~ExpertCopies();
  ExpertCopies(const ExpertCopies&) = delete;
  ExpertCopies& operator=(const ExpertCopies&) = delete;

  /// Whether it has nothing to do, and nothing failed.
  bool idle();
  /// Begins to copy these, one behind the other. Of who is idle.
  void begin(std::span<const Swap> swaps);
  /// Calls with every swap that has ended since the last call, and whether it arrived.
  template <typename F>
  void take_ended(F&& call) {
    {
      const std::lock_guard lock(mutex_);
      taken_.swap(ended_);
    }
    for (const Ended& one : taken_) call(one.swap, one.arrived);
    taken_.clear();
  }

 private:
  struct Ended {
    Swap swap;
    bool arrived;
  };
  void work();

  std::function<void(const Swap&)> copy_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Swap> waiting_;
  std::vector<Ended> ended_, taken_;
  bool busy_ = false, failed_ = false, ends_ = false;
  std::thread thread_;
};

}  // namespace sluice::backend::places
