#include "backend/cpu/pages.h"

#include <sys/mman.h>

#include "base/error.h"
#include "base/memory_advice.h"

namespace sluice::backend::cpu {

Pages::Pages(int64_t bytes, Size size) : bytes_(bytes) {
  if (bytes == 0) return;
  void* address = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) fail("cannot get {} bytes of memory", bytes);
  data_ = static_cast<std::byte*>(address);
  // A wish: without it the same memory is read through more page table entries.
  if (size == Size::Huge) want_pages(address, static_cast<size_t>(bytes), PageSize::Huge);
}

Pages::~Pages() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

void want_huge_pages(const std::byte* data, size_t bytes) { want_pages(data, bytes, PageSize::Huge); }

}  // namespace sluice::backend::cpu
