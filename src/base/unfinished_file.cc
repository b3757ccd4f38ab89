#include "base/unfinished_file.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <csignal>
#include <cstring>
#include <mutex>

namespace sluice {
namespace {

// A signal handler reaches nothing but globals, and may not allocate: paths lie in fixed places.
constexpr int kFiles = 8;
constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};

struct Slot {
  std::atomic<bool> used = false;
  char path[PATH_MAX] = {};
};
std::array<Slot, kFiles> slots;
static_assert(std::atomic<bool>::is_always_lock_free);

std::mutex mutex;  // of what follows, and of who takes a slot
int unfinished = 0;
std::array<struct sigaction, kSignals.size()> before;
std::array<bool, kSignals.size()> watched;

void remove_and_end(int signal) {
  for (const Slot& slot : slots)
    if (slot.used.load()) ::unlink(slot.path);
  // As if nobody had caught it: whoever started the program sees the signal.
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

/// Only of signals that nobody else catches or ignores.
void watch_signals() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    ::sigaction(kSignals[i], nullptr, &before[i]);
    watched[i] = before[i].sa_handler == SIG_DFL;
    action.sa_handler = remove_and_end;
    sigemptyset(&action.sa_mask);
    if (watched[i]) ::sigaction(kSignals[i], &action, nullptr);
  }
}

void leave_signals() {
  for (size_t i = 0; i < kSignals.size(); ++i)
    if (watched[i]) ::sigaction(kSignals[i], &before[i], nullptr);
}

}  // namespace

UnfinishedFile::UnfinishedFile(const std::string& path) {
  if (path.size() >= PATH_MAX) return;
  const std::lock_guard lock(mutex);
  for (int i = 0; i < kFiles && slot_ < 0; ++i)
    if (!slots[static_cast<size_t>(i)].used.load()) slot_ = i;
  if (slot_ < 0) return;
  Slot& slot = slots[static_cast<size_t>(slot_)];
  std::memcpy(slot.path, path.c_str(), path.size() + 1);
  slot.used = true;
  if (unfinished++ == 0) watch_signals();
}

UnfinishedFile::~UnfinishedFile() {
  if (slot_ < 0) return;
  const std::lock_guard lock(mutex);
  slots[static_cast<size_t>(slot_)].used = false;
  if (--unfinished == 0) leave_signals();
}

}  // namespace sluice
