// The handler may do next to nothing: it reads the table without a lock, and writes with write(2) alone.
#include "base/mapping_guard.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>

namespace sluice {
namespace {

/// A row of the table. `end` is set last and cleared first: a row with an end is whole.
struct Guarded {
  std::atomic<uintptr_t> begin{0}, end{0};
  char line[512];  ///< what the handler writes
  size_t length;
};

Guarded g_table[kGuardedMappings];
std::mutex g_writers;
struct sigaction g_before;

static_assert(std::atomic<uintptr_t>::is_always_lock_free);

void on_sigbus(int signal, siginfo_t* info, void*) {
  // si_code is positive for faults, whose address is known, and not for signals that somebody sent.
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Guarded& row : g_table) {
    const uintptr_t end = row.end.load(std::memory_order_acquire);
    if (info->si_code <= 0 || address >= end || address < row.begin.load(std::memory_order_relaxed)) continue;
    // Several threads may meet the end of the file at once: one speaks, the others wait for the end.
    static std::atomic_flag told;
    while (told.test_and_set()) ::pause();
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, row.line, row.length);
    ::_exit(1);
  }
  // Not ours: as if this handler had never been. A fault happens again as soon as we return.
  ::sigaction(SIGBUS, &g_before, nullptr);
  if (info->si_code <= 0) ::raise(signal);
}

void install() {
  struct sigaction action {};
  action.sa_sigaction = on_sigbus;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &g_before);
}

/// "sluice: NAME: ...": a long name loses its beginning.
void set_line(Guarded& row, const std::string& name) {
  const std::string what = ": the file was truncated while it was in use\n";
  const size_t room = sizeof row.line - what.size() - 16;
  std::string line = "sluice: ";
  line += name.size() > room ? "..." + name.substr(name.size() - room) : name;
  line += what;
  row.length = line.size();
  std::memcpy(row.line, line.data(), line.size());
}

}  // namespace

void guard_mapping(std::span<const std::byte> bytes, const std::string& name) {
  const std::lock_guard lock(g_writers);
  static std::once_flag once;
  std::call_once(once, install);
  const auto free = std::find_if(std::begin(g_table), std::end(g_table),
                                 [](const Guarded& row) { return row.end.load() == 0; });
  if (free == std::end(g_table)) return;
  set_line(*free, name);
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  free->begin.store(begin, std::memory_order_relaxed);
  free->end.store(begin + bytes.size(), std::memory_order_release);
}

void unguard_mapping(const std::byte* begin) {
  const std::lock_guard lock(g_writers);
  for (Guarded& row : g_table) {
    if (row.end.load() == 0 || row.begin.load() != reinterpret_cast<uintptr_t>(begin)) continue;
    row.end.store(0, std::memory_order_release);
    return;
  }
}

}  // namespace sluice
