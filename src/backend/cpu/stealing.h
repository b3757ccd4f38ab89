// Work stealing in steps of many rows: every worker begins with the stretch of an op's items that is its own
// (weights lie in its node's memory) and takes them from the front; who has finished takes from the back of
// others' stretches. Cores that share a unit or a second with somebody else then wait for nobody. Who
// computes an item changes no bit of it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/threads.h"

namespace sluice::backend::cpu {

/// What has been taken of one worker's stretch in one op: items from the front in the lower half, from the
/// back in the upper. Zero before every step. Outputs are published by the barrier behind the op, not here.
struct alignas(64) Taken {
  std::atomic<uint64_t> ends{0};

  /// The next items of a stretch of `count` (less than 2^32), a quarter of what is left and one at least; an
  /// empty slice when nothing is left.
  Slice take(int64_t count, bool from_front) {
    uint64_t seen = ends.load(std::memory_order_relaxed);
    for (;;) {
      const auto front = static_cast<int64_t>(seen & 0xffffffffu), back = static_cast<int64_t>(seen >> 32);
      const int64_t left = count - front - back;
      if (left <= 0) return {0, 0};
      const int64_t some = std::max<int64_t>(1, left / 4);
      const uint64_t next = seen + (static_cast<uint64_t>(some) << (from_front ? 0 : 32));
      if (!ends.compare_exchange_weak(seen, next, std::memory_order_relaxed)) continue;
      if (from_front) return {front, front + some};
      return {count - back - some, count - back};
    }
  }
};

/// Of one op and one worker: where to take items.
struct Stealing {
  Taken* taken;  // [workers]; null: every worker keeps to its own
  int worker, workers;

  /// Calls body(owner, items of the owner's stretch) until nothing is left anywhere; count(owner): how long a
  /// stretch is, the same on every worker.
  template <typename Count, typename Body>
  void each(Count count, Body body) const {
    if (taken == nullptr) {
      if (const int64_t own = count(worker); own > 0) body(worker, Slice{0, own});
      return;
    }
    for (int k = 0; k < workers; ++k) {
      const int owner = (worker + k) % workers;
      const int64_t items = count(owner);
      for (Slice piece = taken[owner].take(items, k == 0); piece.first < piece.last;
           piece = taken[owner].take(items, k == 0))
        body(owner, piece);
    }
  }
};

/// The panels of a matrix that one worker multiplies.
class PanelWork {
 public:
  /// These and no others.
  PanelWork(Slice panels) : own_(panels) {}
  /// Its own of `count`, then what others have left.
  PanelWork(int64_t count, const Stealing& stealing)
      : own_(slice_of(count, stealing.worker, stealing.workers)), count_(count), stealing_(stealing) {}

  Slice own() const { return own_; }
  /// Calls body(round, panels) until all panels have gone through all rounds; `together` panels are not
  /// parted.
  template <typename Body>
  void each(int64_t rounds, int64_t together, Body body) const {
    if (stealing_.taken == nullptr) {
      for (int64_t round = 0; round < rounds && own_.first < own_.last; ++round) body(round, own_);
      return;
    }
    const auto items = [&](Slice s) { return (s.last - s.first + together - 1) / together; };
    const auto stretch = [&](int owner) { return slice_of(count_, owner, stealing_.workers); };
    stealing_.each([&](int owner) { return rounds * items(stretch(owner)); },
                   [&](int owner, Slice piece) {
                     const Slice panels = stretch(owner);
                     const int64_t width = items(panels);
                     for (int64_t at = piece.first; at < piece.last;) {
                       const int64_t round = at / width, base = round * width,
                                     end = std::min(piece.last, base + width);
                       body(round, Slice{panels.first + (at - base) * together,
                                         std::min(panels.last, panels.first + (end - base) * together)});
                       at = end;
                     }
                   });
  }

 private:
  Slice own_;
  int64_t count_ = 0;
  Stealing stealing_{nullptr, 0, 1};
};

}  // namespace sluice::backend::cpu
