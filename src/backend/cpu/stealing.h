// Work stealing: every worker begins with the stretch of an op's items that is its own (weights lie in its
// node's memory) and takes them from the front; who has finished takes from the back of others' stretches.
// Cores that share a unit or a second with somebody else, or are slower than their neighbours, then are
// waited for by nobody. Who computes an item changes no bit of it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/threads.h"

namespace sluice::backend::cpu {

/// What has been taken of one worker's stretch in one op. Outputs are published by the barrier behind the op,
/// not here.
class alignas(64) Taken {
 public:
  /// Items of a stretch that can be dealt out.
  static constexpr int64_t kMost = (int64_t{1} << 20) - 1;

  /// The next items of a stretch of `count` (kMost at most): a quarter of what is left, `least` if there are
  /// as many; an empty slice when nothing is left. What was taken in another step than this counts for
  /// nothing.
  Slice take(uint32_t step, int64_t count, int64_t least, bool from_front) {
    uint64_t seen = taken_.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t now = of_step(seen, step);
      const auto front = static_cast<int64_t>(now & kMask), back = static_cast<int64_t>(now >> kBits & kMask);
      const int64_t left = count - front - back;
      if (left <= 0) return {0, 0};
      const int64_t some = std::min(left, std::max(least, left / 4));
      const uint64_t next = now + (static_cast<uint64_t>(some) << (from_front ? 0 : kBits));
      if (!taken_.compare_exchange_weak(seen, next, std::memory_order_relaxed)) continue;
      if (from_front) return {front, front + some};
      return {count - back - some, count - back};
    }
  }
  /// All items are there again. Between two barriers only.
  void reset() { taken_.store(0, std::memory_order_relaxed); }
  /// How often it was called before in this step: for pieces that everybody numbers alike.
  int64_t next(uint32_t step) {
    uint64_t seen = taken_.load(std::memory_order_relaxed);
    while (!taken_.compare_exchange_weak(seen, of_step(seen, step) + 1, std::memory_order_relaxed)) {
    }
    return static_cast<int64_t>(of_step(seen, step) & kMask);
  }

 private:
  static constexpr int kBits = 20;
  static constexpr uint64_t kMask = kMost;
  static uint64_t of_step(uint64_t seen, uint32_t step) {
    const uint64_t mark = uint64_t{step} << 2 * kBits;
    return seen >> 2 * kBits == mark >> 2 * kBits ? seen : mark;
  }

  // Items from the front, from the back (20 bits each), and the step's lowest 24 bits.
  std::atomic<uint64_t> taken_{0};
};

/// Whether and where workers steal in an op.
struct Steals {
  Taken* taken = nullptr;  // [workers] of this op; null: every worker keeps to its own
  uint32_t step = 0;       // another one (of 24 bits) in every step in which they steal
  int reach = 0;           // how many neighbours are asked; each answer is a cache line from another core
};

/// Of one op and one worker: where to take items.
struct Stealing {
  Steals steals;
  int worker, workers;
  /// The team's parts, which divide it evenly and do not steal from each other: of every `parts` workers side
  /// by side each belongs to another one.
  int parts = 1;

  /// `count` items shared among the workers of a part: those of one of them.
  Slice stretch(int64_t count, int of) const { return slice_of(count, of / parts, workers / parts); }

  /// Calls body(owner, items of the owner's stretch) until nothing is left within reach; `least` together.
  /// count(owner): how long a stretch is, the same on every worker. A longer one than can be dealt out is its
  /// owner's alone.
  template <typename Count, typename Body>
  void each(int64_t least, Count count, Body body) const {
    const int reach = steals.taken == nullptr ? 0 : std::min(steals.reach, workers / parts - 1);
    for (int k = 0; k <= reach; ++k) {
      const int owner = (worker + k * parts) % workers;
      const int64_t items = count(owner);
      if (steals.taken == nullptr || items > Taken::kMost) {
        if (k == 0 && items > 0) body(owner, Slice{0, items});
        continue;
      }
      for (;;) {
        const Slice piece = steals.taken[owner].take(steals.step, items, least, k == 0);
        if (piece.first == piece.last) break;
        body(owner, piece);
      }
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
      : own_(stealing.stretch(count, stealing.worker)), count_(count), stealing_(stealing) {}

  Slice own() const { return own_; }
  /// Calls body(round, panels) until all panels have gone through all rounds; `together` panels are not
  /// parted, and `least` of these are taken at once.
  template <typename Body>
  void each(int64_t rounds, int64_t together, Body body, int64_t least = 1) const {
    if (stealing_.steals.taken == nullptr) {
      for (int64_t round = 0; round < rounds && own_.first < own_.last; ++round) body(round, own_);
      return;
    }
    const auto items = [&](Slice s) { return (s.last - s.first + together - 1) / together; };
    stealing_.each(
        least, [&](int owner) { return rounds * items(stealing_.stretch(count_, owner)); },
        [&](int owner, Slice piece) {
          const Slice panels = stealing_.stretch(count_, owner);
          const int64_t width = items(panels);
          if (width == 0) return;  // such a stretch has no pieces
          for (int64_t at = piece.first; at < piece.last;) {
            const int64_t round = at / width, base = round * width, end = std::min(piece.last, base + width);
            body(round, Slice{panels.first + (at - base) * together,
                              std::min(panels.last, panels.first + (end - base) * together)});
            at = end;
          }
        });
  }

 private:
  Slice own_;
  int64_t count_ = 0;
  Stealing stealing_{{}, 0, 1};
};

}  // namespace sluice::backend::cpu
