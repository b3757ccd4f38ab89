#include "engine/scorer.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "engine/kv_pool.h"

namespace sluice::engine {

Scorer::Scorer(program::Executable& executable, int64_t context, int64_t max_rows)
    : executable_(executable),
      max_rows_(max_rows),
      vocabulary_(static_cast<size_t>(executable.program()[executable.program().output()].columns())),
      batch_(max_rows, 1, static_cast<int32_t>(KvPool::pages_for(context))),
      logits_(static_cast<size_t>(max_rows) * vocabulary_) {
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
    for (int64_t i = begin; i < end; ++i) {
      batch_.add(tokens[static_cast<size_t>(i)], static_cast<int32_t>(i), 0, i >= first);
    }
    program::StepOutput output{logits_};
    executable_.run(batch_.input(), output);
    size_t row = 0;
    for (int64_t i = std::max(begin, first); i < end; ++i, ++row) {
      on_row(i, std::span<const float>(logits_).subspan(row * vocabulary_, vocabulary_));
    }
  }
}

}  // namespace sluice::engine
