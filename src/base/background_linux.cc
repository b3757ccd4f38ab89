#include "base/background.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace sluice {

// A tenth of the time of a thread beside it, which is enough to get on and little enough to go unnoticed.
constexpr int kStepsBack = 10, kMostNice = 19;

int64_t thread_id() { return ::gettid(); }

void to_background(int64_t thread) {
  const auto id = static_cast<id_t>(thread);
  errno = 0;
  const int nice = ::getpriority(PRIO_PROCESS, id);
  if (nice == -1 && errno != 0) return;
  ::setpriority(PRIO_PROCESS, id, std::min(nice + kStepsBack, kMostNice));
}

void share_heaps() {
#if defined(__GLIBC__)
  ::mallopt(M_ARENA_MAX, 2);
#endif
}

void give_back_freed_memory() {
#if defined(__GLIBC__)
  ::malloc_trim(0);
#endif
}

}  // namespace sluice
