#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory_advice.h"

namespace sluice {

void want_pages(const void* data, size_t bytes, PageSize size) {
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(data) + bytes;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the beginning of the page
  ::madvise(reinterpret_cast<void*>(begin), end - begin,
            size == PageSize::Huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

void drop_file_pages(int descriptor, size_t offset, std::span<const std::byte> pages) {
  // Out of this process first: what is mapped stays in the cache.
  ::madvise(const_cast<std::byte*>(pages.data()), pages.size(), MADV_DONTNEED);
  ::posix_fadvise(descriptor, static_cast<off_t>(offset), static_cast<off_t>(pages.size()),
                  POSIX_FADV_DONTNEED);
}

}  // namespace sluice
