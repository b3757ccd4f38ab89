#include "base/file_cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/memory_advice.h"

namespace sluice {
namespace {

struct Mapping {
  const std::byte* data;
  size_t size;
  int descriptor;
};
constexpr size_t kMostMappings = 256;  // each keeps a file open, and a process may have some thousand
std::mutex g_mutex;
std::vector<Mapping> g_mappings;

}  // namespace

void know_mapping(std::span<const std::byte> bytes, int descriptor) {
  const std::lock_guard lock(g_mutex);
  if (g_mappings.size() == kMostMappings) {
    ::close(descriptor);
    return;
  }
  g_mappings.push_back({bytes.data(), bytes.size(), descriptor});
}

void forget_mapping(const std::byte* begin) {
  const std::lock_guard lock(g_mutex);
  const auto found = std::find_if(g_mappings.begin(), g_mappings.end(),
                                  [begin](const Mapping& m) { return m.data == begin; });
  if (found == g_mappings.end()) return;
  ::close(found->descriptor);
  g_mappings.erase(found);
}

void drop_pages(std::span<const std::byte> bytes) {
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const std::lock_guard lock(g_mutex);  // the mapping stays as long as this takes
  for (const Mapping& m : g_mappings) {
    if (bytes.data() < m.data || bytes.data() + bytes.size() > m.data + m.size) continue;
    const auto from = static_cast<size_t>(bytes.data() - m.data), to = from + bytes.size();
    const size_t begin = (from + page - 1) / page * page;
    // The file's last page goes with its last byte.
    const size_t end = to == m.size ? (to + page - 1) / page * page : to / page * page;
    if (begin >= end) return;
    drop_file_pages(m.descriptor, begin, {m.data + begin, end - begin});
    return;
  }
}

void bring_pages(std::span<const std::byte> bytes) {
  // Of more than a disk's read-ahead Linux reads the beginning alone; so much every disk reads ahead.
  constexpr size_t kAtOnce = 128 << 10;
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t before = reinterpret_cast<uintptr_t>(bytes.data()) % page;
  auto* begin = const_cast<std::byte*>(bytes.data()) - before;
  const size_t size = before + bytes.size();
  for (size_t at = 0; at < size; at += kAtOnce)
    ::posix_madvise(begin + at, std::min(kAtOnce, size - at), POSIX_MADV_WILLNEED);
}

}  // namespace sluice
