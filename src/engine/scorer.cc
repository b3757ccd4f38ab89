#include "engine/scorer.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "engine/kv_pool.h"

namespace sluice::engine {

Scorer::Scorer(program::Executable& executable, int64_t context, int64_t max_rows)
    : executable_(executable),
      max_rows_(max_rows),
      batch_(max_rows, 1, static_cast<int32_t>(KvPool::pages_for(context))) {
  std::vector<int32_t> pages(static_cast<size_t>(KvPool::pages_for(context)));
  std::iota(pages.begin(), pages.end(), 0);
  batch_.set_pages(0, pages);
}

void Scorer::run(std::span<const int32_t> tokens, int64_t first,
                 const std::function<void(int64_t, std::span<const float>)>& on_row) {
  const auto count = static_cast<int64_t>(tokens.size());
  for (int64_t begin = 0; begin < count; begin += max_rows_) {
    const int64_t end = std::min(count, begin + max_rows_);
    batch_.clear();
    const int32_t turn =
        begin / max_rows_ % 2;  // what the step before this one left is where this one begins
    batch_.set_state(0, {turn, 1 - turn});
    for (int64_t i = begin; i < end; ++i) {
      batch_.add(tokens[static_cast<size_t>(i)], static_cast<int32_t>(i), 0, i >= first);
    }
    int64_t position = std::max(begin, first);
    for (const program::RowResult& row : program::run_step(executable_, batch_.step()).outputs)
      on_row(position++, row.logits);
  }
}

}  // namespace sluice::engine
