// Signals as flags. A signal handler reaches nothing but a global, so these are some.
#pragma once

#include <pthread.h>
#include <sys/select.h>

#include <atomic>
#include <cerrno>
#include <csignal>

namespace sluice::cli {

/// While it lives, the signal sets the flag and has no other effect, and system calls in which the thread
/// that made it waits return with EINTR. One at a time.
template <int kSignal>
class SignalFlag {
 public:
  SignalFlag() {
    raised_ = false;
    waiting_ = ::pthread_self();
    struct sigaction action {};
    action.sa_handler = [](int) {  // without SA_RESTART: reading must end
      raised_ = true;
      // Any thread may have got it; as a rule it is another one when a stopped program goes on.
      if (::pthread_equal(::pthread_self(), waiting_) == 0) ::pthread_kill(waiting_, kSignal);
    };
    sigemptyset(&action.sa_mask);
    ::sigaction(kSignal, &action, &before_);
  }
  SignalFlag(const SignalFlag&) = delete;
  SignalFlag& operator=(const SignalFlag&) = delete;
  ~SignalFlag() { ::sigaction(kSignal, &before_, nullptr); }

  static std::atomic<bool>& raised() { return raised_; }

 private:
  static inline std::atomic<bool> raised_{false};
  static inline pthread_t waiting_{};
  static_assert(std::atomic<bool>::is_always_lock_free);
  struct sigaction before_ {};
};

/// While it lives, signals that are flags reach its thread within wait_for_input() alone: none comes between
/// a look at its flag and the wait.
class HeldSignals {
 public:
  HeldSignals() {
    sigset_t held;
    sigemptyset(&held);
    for (const int signal : {SIGINT, SIGWINCH, SIGCONT}) sigaddset(&held, signal);
    ::pthread_sigmask(SIG_BLOCK, &held, &before_);
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  ~HeldSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  /// Until `file` has something to read, or has ended; false: a signal came.
  bool wait_for_input(int file) const {
    fd_set files;
    FD_ZERO(&files);
    FD_SET(file, &files);
    return ::pselect(file + 1, &files, nullptr, nullptr, nullptr, &before_) >= 0 || errno != EINTR;
  }

 private:
  sigset_t before_;
};

using InterruptFlag = SignalFlag<SIGINT>;  ///< Ctrl-C
using ResizeFlag = SignalFlag<SIGWINCH>;   ///< the terminal has another size
using ContinueFlag = SignalFlag<SIGCONT>;  ///< after Ctrl-Z the shell goes on with the program

}  // namespace sluice::cli
