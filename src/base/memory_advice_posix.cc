#include "base/memory_advice.h"

#include <sys/mman.h>

namespace sluice {

void want_pages(const void*, size_t, PageSize) {}

void drop_file_pages(int, size_t, std::span<const std::byte> pages) {
  ::posix_madvise(const_cast<std::byte*>(pages.data()), pages.size(), POSIX_MADV_DONTNEED);
}

}  // namespace sluice
