// Long work may lose its purpose while it is done (a client has gone): whoever starts it says where that can
// be seen, and the work looks there now and then. Knows one flag a thread.
#pragma once

#include <atomic>
#include <exception>
#include <utility>

namespace sluice {

/// Is no Error: whoever reports errors, or does without what failed, has nothing to do with it.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "the work has lost its purpose"; }
};

/// As long as it lives, the work of this thread ends soon after `gone` is set.
class Interruptible {
 public:
  explicit Interruptible(const std::atomic<bool>& gone) : before_(std::exchange(flag_, &gone)) {}
  ~Interruptible() { flag_ = before_; }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

  /// Throws Interrupted where the work has lost its purpose. Takes a nanosecond or two.
  static void look() {
    if (flag_ != nullptr && flag_->load(std::memory_order_relaxed)) throw Interrupted();
  }

 private:
  static inline thread_local const std::atomic<bool>* flag_ = nullptr;
  const std::atomic<bool>* before_;
};

}  // namespace sluice
