// Memory from the system, page-wise.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::backend::cpu {

/// Zeroed pages from the system: a large cache costs memory only where it is written.
class Pages {
 public:
  enum class Size : uint8_t { Normal, Huge };

  /// Huge: pages of 2 MB where the system has them. Throws Error when the system refuses.
  explicit Pages(int64_t bytes, Size size = Size::Normal);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// Asks that a mapped file be read in large pages, as a wish. Good for what was not read before:
/// pages that the system has of the file already stay as they are.
void want_huge_pages(const std::byte* data, size_t bytes);

}  // namespace sluice::backend::cpu
