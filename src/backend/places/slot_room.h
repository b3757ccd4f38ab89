// Addresses for weights that no file has: slots of experts. They read as zeroes and take no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::backend::places {

class SlotRoom {
 public:
  /// Throws Error where the system refuses.
  explicit SlotRoom(int64_t bytes);
  ~SlotRoom();
  SlotRoom(const SlotRoom&) = delete;
  SlotRoom& operator=(const SlotRoom&) = delete;
  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(bytes_)}; }

 private:
  const std::byte* data_ = nullptr;
  int64_t bytes_;
};

}  // namespace sluice::backend::places
