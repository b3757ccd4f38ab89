// Ctrl-C as a flag. A signal handler reaches nothing but a global, so this is one.
#pragma once

#include <csignal>

#include <atomic>

namespace sluice::cli {

/// While it lives, SIGINT sets the flag, and system calls that wait return with EINTR, instead of ending the
/// program. One at a time.
class InterruptFlag {
 public:
  InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;
  ~InterruptFlag();

  static std::atomic<bool>& raised() { return raised_; }

 private:
  static inline std::atomic<bool> raised_{false};
  static_assert(std::atomic<bool>::is_always_lock_free);
  struct sigaction before_ {};
};

}  // namespace sluice::cli
