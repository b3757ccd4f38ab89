#include "engine/kv_pool.h"

#include <numeric>

#include "program/tensor.h"

namespace sluice::engine {

KvPool::KvPool(int32_t pages) : free_(static_cast<size_t>(pages)) {
  std::iota(free_.rbegin(), free_.rend(), 0);  // page 0 goes first
}

int64_t KvPool::pages_for(int64_t rows) { return (rows + program::kPageRows - 1) / program::kPageRows; }

bool KvPool::reserve(std::vector<int32_t>& table, int64_t rows) {
  const int64_t missing = pages_for(rows) - static_cast<int64_t>(table.size());
  if (missing > free_pages()) return false;
  for (int64_t i = 0; i < missing; ++i) {
    table.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void KvPool::release(std::vector<int32_t>& table) {
  free_.insert(free_.end(), table.rbegin(), table.rend());
  table.clear();
}

}  // namespace sluice::engine
