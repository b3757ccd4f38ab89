#include "backend/cpu/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "base/error.h"

namespace sluice::backend::cpu {

Pages::Pages(int64_t bytes, Size size) : bytes_(bytes) {
  if (bytes == 0) return;
  void* address = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) fail("cannot get {} bytes of memory", bytes);
  data_ = static_cast<std::byte*>(address);
  // A wish: without it the same memory is read through more page table entries.
  if (size == Size::Huge) ::madvise(address, static_cast<size_t>(bytes), MADV_HUGEPAGE);
}

Pages::~Pages() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

void want_huge_pages(const std::byte* data, size_t bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(data) + bytes;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace sluice::backend::cpu
