// The free pages of the paged caches. A page holds kPageRows rows of one sequence, for all layers of each.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::engine {

class KvPool {
 public:
  explicit KvPool(int32_t pages);

  int32_t free_pages() const { return static_cast<int32_t>(free_.size()); }
  /// Grows a sequence's page table until it covers `rows` rows. False, and nothing taken, when too few are
  /// free.
  bool reserve(std::vector<int32_t>& table, int64_t rows);
  /// Gives one page back.
  void give_back(int32_t page) { free_.push_back(page); }
  /// Gives all pages of a table back.
  void release(std::vector<int32_t>& table);

  /// Pages that `rows` rows take.
  static int64_t pages_for(int64_t rows);

 private:
  std::vector<int32_t> free_;  // the last is the next to be given out
};

}  // namespace sluice::engine
