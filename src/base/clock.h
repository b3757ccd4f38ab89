// The one clock for measuring: monotonic, in nanoseconds; and a cheaper one for moments between two readings
// of it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace sluice {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// The processor's counter of time where it has one that a program reads in some nanoseconds (x86: the time
/// stamp counter, which runs alike on all cores of today's processors); now_ns() elsewhere. Its unit is for
/// TickScale to find out.
inline int64_t ticks() {
#if defined(__x86_64__)
  return static_cast<int64_t>(__rdtsc());
#else
  return now_ns();
#endif
}

/// Turns ticks between two moments into nanoseconds: both clocks are read at either moment.
class TickScale {
 public:
  void begin() { begin_ns_ = now_ns(), begin_ticks_ = ticks(); }
  void end() { end_ticks_ = ticks(), end_ns_ = now_ns(); }
  int64_t begin_ns() const { return begin_ns_; }
  int64_t end_ns() const { return end_ns_; }
  /// Never outside of the two moments, whatever a counter did.
  int64_t ns(int64_t at) const {
    if (end_ticks_ <= begin_ticks_) return begin_ns_;
    const double share =
        static_cast<double>(at - begin_ticks_) / static_cast<double>(end_ticks_ - begin_ticks_);
    const double ns = static_cast<double>(end_ns_ - begin_ns_) * std::clamp(share, 0.0, 1.0);
    return begin_ns_ + static_cast<int64_t>(ns);
  }

 private:
  int64_t begin_ns_ = 0, begin_ticks_ = 0, end_ns_ = 0, end_ticks_ = 0;
};

}  // namespace sluice
