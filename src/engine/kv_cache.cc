#include "engine/kv_cache.h"

#include <algorithm>
#include <set>

#include "base/check.h"

namespace sluice::engine {

using program::kPageRows;

// Whole pages before the last token: the pages that a sequence of these tokens could take over.
static std::span<const int32_t> shareable(std::span<const int32_t> tokens) {
  return tokens.first((tokens.size() - 1) / kPageRows * kPageRows);
}

KvCache::Offer KvCache::offer(std::span<const int32_t> tokens, int64_t rows) {
  chain_.clear();
  tree_.find(shareable(tokens), chain_);
  const auto found = std::ssize(chain_);
  // Pages of the chain that are unused now count as available, but this sequence will use them.
  return {found * kPageRows, KvPool::pages_for(rows) - found + tree_.unused_of(chain_)};
}

SequencePages KvCache::open(std::span<const int32_t> tokens) {
  SequencePages out;
  tree_.find(shareable(tokens), out.pages);
  out.shared = std::ssize(out.pages);
  out.rows = out.shared * kPageRows;
  tree_.hold(out.held());
  const auto rest = tokens.subspan(static_cast<size_t>(out.rows));
  const auto wanted = rest.first(std::min<size_t>(rest.size() - 1, kPageRows));
  if (const auto taken = tree_.take_leaf(out.held(), wanted)) {
    out.pages.push_back(taken->page);
    out.rows += taken->rows;
  }
  return out;
}

bool KvCache::grow(SequencePages& sequence, int64_t rows) {
  const int64_t missing = KvPool::pages_for(rows) - std::ssize(sequence.pages);
  if (missing > available()) return false;
  while (pool_.free_pages() < missing) pool_.give_back(tree_.evict());
  CHECK(pool_.reserve(sequence.pages, rows));
  return true;
}

void KvCache::computed(SequencePages& sequence, std::span<const int32_t> tokens, int64_t rows) {
  CHECK(rows >= sequence.rows && rows <= std::ssize(tokens), "{} rows after {}", rows, sequence.rows);
  sequence.rows = rows;
  for (; (sequence.shared + 1) * kPageRows <= rows; ++sequence.shared) {
    int32_t& page = sequence.pages[static_cast<size_t>(sequence.shared)];
    const int32_t kept = tree_.extend(
        sequence.held(), tokens.subspan(static_cast<size_t>(sequence.shared) * kPageRows, kPageRows), page);
    if (kept != page) pool_.give_back(page);
    page = kept;
  }
}

void KvCache::close(SequencePages& sequence, std::span<const int32_t> tokens) {
  const int32_t parent = sequence.held();
  const int64_t whole = sequence.shared * kPageRows;
  for (size_t i = 0; const int32_t page : sequence.own()) {
    if (i++ > 0 || sequence.rows == whole) {
      pool_.give_back(page);
      continue;
    }
    const auto tail = tokens.subspan(static_cast<size_t>(whole), static_cast<size_t>(sequence.rows - whole));
    const int32_t spare = tree_.add_leaf(parent, tail, page);
    if (spare != PrefixTree::kRoot) pool_.give_back(spare);
  }
  tree_.release(parent);
  sequence = {};
}

void KvCache::check(std::span<const SequencePages* const> open) const {
  std::vector<int32_t> held;
  std::set<int32_t> owned;
  int64_t own = 0;
  for (const SequencePages* sequence : open) {
    held.push_back(sequence->held());
    own += std::ssize(sequence->own());
    for (const int32_t page : sequence->own()) {
      CHECK(owned.insert(page).second && !tree_.contains(page), "page {} is in two places", page);
    }
    CHECK(sequence->rows >= sequence->shared * kPageRows, "{} rows", sequence->rows);
    CHECK(sequence->rows < (sequence->shared + 1) * kPageRows, "{} rows", sequence->rows);
  }
  tree_.check(held);
  CHECK(own + tree_.size() + free_pages() == pages_, "{} own, {} in the tree, {} free, of {}", own,
        tree_.size(), free_pages(), pages_);
}

}  // namespace sluice::engine
