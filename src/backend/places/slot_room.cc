#include "backend/places/slot_room.h"

#include <sys/mman.h>

#include "base/error.h"

namespace sluice::backend::places {

SlotRoom::SlotRoom(int64_t bytes) : bytes_(bytes) {
  void* const address = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) fail("cannot get {} bytes of addresses", bytes);
  data_ = static_cast<const std::byte*>(address);
}

SlotRoom::~SlotRoom() { ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(bytes_)); }

}  // namespace sluice::backend::places
