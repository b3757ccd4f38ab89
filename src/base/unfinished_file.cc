#include "base/unfinished_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
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

// While files are being opened a signal waits: they may be there already and not be watched yet.
std::atomic<int> opening = 0, waiting = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void remove_and_end(int signal) {
  waiting = signal;  // first: whoever ends the opening looks at it after `opening` is 0
  if (opening > 0) return;
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

class Opening {
 public:
  Opening() {
    const std::lock_guard lock(mutex);
    if (unfinished++ == 0) watch_signals();
    ++opening;
  }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;
  ~Opening() {
    if (--opening == 0 && waiting != 0) ::raise(waiting);
    const std::lock_guard lock(mutex);
    if (--unfinished == 0) leave_signals();
  }
};

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

int open_unfinished(const std::string& path, std::optional<UnfinishedFile>& unfinished) {
  const auto open = [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644); };
  struct stat info {};
  // Nothing is ours to remove here, and opening a pipe may wait for its reader.
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) return open();
  const Opening hold;
  const int descriptor = open();
  const int reason = errno;
  if (descriptor >= 0 && ::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode)) unfinished.emplace(path);
  errno = reason;
  return descriptor;
}

}  // namespace sluice
