#include "engine/kv_cache.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "base/check.h"

namespace sluice::engine {

using program::kPageRows;

// Whole pages before the last token: the pages that a sequence of these tokens could take over.
static std::span<const int32_t> shareable(std::span<const int32_t> tokens) {
  return tokens.first((tokens.size() - 1) / kPageRows * kPageRows);
}

// Of a chain of pages, those before the last snapshot and its own: a sequence can go on from there.
void KvCache::restorable(std::vector<int32_t>& chain) const {
  if (!has_states_) return;
  while (!chain.empty() && !states_.snapshot(chain.back())) chain.pop_back();
}

void KvCache::leaves(int32_t page) const {
  for (PageWatcher* watcher : watchers_) watcher->leaves(page);
}

void KvCache::tell_snapshot(int32_t page, int32_t slot) const {
  for (PageWatcher* watcher : watchers_) watcher->snapshot(page, slot);
}

int32_t KvCache::evict() {
  const int32_t page = tree_.evict();
  if (page != PrefixTree::kRoot) leaves(page);
  states_.forget(page);
  return page;
}

void KvCache::find(std::span<const int32_t> tokens, std::vector<int32_t>& chain,
                   const PrefixGroup& group) const {
  tree_.find(shareable(tokens), chain, group.pages);
}

int32_t KvCache::take_page(int64_t reserve) {
  if (available() <= reserve) return PrefixTree::kRoot;
  if (pool_.free_pages() == 0) pool_.give_back(evict());
  std::vector<int32_t> page;
  CHECK(pool_.reserve(page, 1));
  return page.front();
}

int32_t KvCache::adopt(int32_t parent, std::span<const int32_t> tokens, int32_t page, uint64_t group) {
  const int32_t kept = tree_.extend(parent, tokens, page, group);
  if (kept != page) {
    pool_.give_back(page);
  } else {
    for (PageWatcher* watcher : watchers_) watcher->entered(parent, page, tokens, group);
  }
  return kept;
}

std::optional<int32_t> KvCache::adopt_snapshot(int32_t page) {
  if (states_.snapshot(page) || !states_.has_room()) return std::nullopt;
  const int32_t slot = states_.take(tree_);
  states_.keep(page, slot);
  return slot;
}

void KvCache::clear() {
  while (cached_pages() > 0) pool_.give_back(evict());
  if (tree_.size() > 0) return;
  for (PageWatcher* watcher : watchers_) watcher->emptied();
}

KvCache::Offer KvCache::offer(std::span<const int32_t> tokens, int64_t rows, const PrefixGroup& group) {
  chain_.clear();
  tree_.find(shareable(tokens), chain_, group.pages);
  restorable(chain_);
  const auto found = std::ssize(chain_);
  // Pages of the chain that are unused now count as available, but this sequence will use them.
  return {found * kPageRows, KvPool::pages_for(rows) - found + tree_.unused_of(chain_)};
}

SequencePages KvCache::open(std::span<const int32_t> tokens, const PrefixGroup& group) {
  SequencePages out;
  out.group = group;
  tree_.find(shareable(tokens), out.pages, group.pages);
  out.known = std::ssize(out.pages) * kPageRows;
  out.asked = std::ssize(tokens);
  restorable(out.pages);
  out.shared = std::ssize(out.pages);
  out.rows = out.shared * kPageRows;
  tree_.hold(out.held());
  if (has_states_) {
    if (out.shared > 0) {
      states_.hold(out.held());
      if (out.rows == out.known && tree_.has_children(out.held())) states_.part(out.held());
      out.state.from = *states_.snapshot(out.held());
    }
    out.state.to = states_.take(tree_);
    return out;
  }
  const auto rest = tokens.subspan(static_cast<size_t>(out.rows));
  const auto wanted = rest.first(std::min<size_t>(rest.size() - 1, kPageRows));
  if (const auto taken = tree_.take_leaf(out.held(), wanted, group.ends)) {
    leaves(taken->page);  // a whole page, too, may be one that is taken
    out.pages.push_back(taken->page);
    out.rows += taken->rows;
  }
  return out;
}

bool KvCache::grow(SequencePages& sequence, int64_t rows) {
  const int64_t missing = KvPool::pages_for(rows) - std::ssize(sequence.pages);
  if (missing > available()) return false;
  while (pool_.free_pages() < missing) pool_.give_back(evict());
  CHECK(pool_.reserve(sequence.pages, rows));
  return true;
}

void KvCache::computed(SequencePages& sequence, std::span<const int32_t> tokens, int64_t rows) {
  CHECK(rows >= sequence.rows && rows <= std::ssize(tokens), "{} rows after {}", rows, sequence.rows);
  const bool is_own = sequence.rows % kPageRows != 0;  // the state before these rows
  const int32_t held_before = sequence.held();
  const int64_t before = std::exchange(sequence.rows, rows);
  for (; (sequence.shared + 1) * kPageRows <= rows; ++sequence.shared) {
    int32_t& page = sequence.pages[static_cast<size_t>(sequence.shared)];
    const int32_t parent = sequence.held();
    const auto its_tokens = tokens.subspan(static_cast<size_t>(sequence.shared) * kPageRows, kPageRows);
    const int32_t kept = tree_.extend(parent, its_tokens, page, sequence.group.pages);
    if (kept != page) {
      pool_.give_back(page);
    } else {
      for (PageWatcher* watcher : watchers_) watcher->entered(parent, page, its_tokens, sequence.group.pages);
    }
    page = kept;
  }
  states_.pass(rows - before);
  if (has_states_ && rows > before) stepped(sequence, is_own ? PrefixTree::kRoot : held_before);
}

bool KvCache::take_slot_ahead(SequencePages& sequence) {
  if (!has_states_ || sequence.ahead != SequencePages::kNoSlot) return true;
  if (!states_.has_room()) return false;
  sequence.ahead = states_.take(tree_);
  return true;
}

// A step has left the state behind the sequence's rows in the slot for it. The one before, a snapshot of page
// `snapshot` or (kRoot) the sequence's own slot or none, is needed no more. A step that has begun ahead may
// still read the state behind the rows, and writes the slot that it was told.
void KvCache::stepped(SequencePages& sequence, int32_t snapshot) {
  constexpr int32_t kNone = SequencePages::kNoSlot;
  program::StateSlots& state = sequence.state;
  int32_t before = std::exchange(state.from, state.to);
  if (snapshot != PrefixTree::kRoot) states_.release(snapshot), before = kNone;
  const bool has_ahead = sequence.ahead != kNone;
  state.to = std::exchange(sequence.ahead, kNone);
  const auto use_again = [&](int32_t slot) {
    if (slot == kNone) return;
    if (state.to == kNone) {
      state.to = slot;
    } else if (has_ahead && sequence.ahead == kNone) {
      sequence.ahead = slot;
    } else {
      states_.give_back(slot);
    }
  };
  if (sequence.rows % kPageRows == 0) use_again(keep_snapshot(sequence));
  use_again(before);
  if (state.to == kNone) state.to = states_.take(tree_);
}

// Whether the snapshot behind a sequence's rows stays when it is further on: where it parted from others, at
// the end of what was asked, and every so many pages. An answer's others are of use as its end alone: its
// text comes back whole, or (a client leaves its reasoning out) not beyond the question.
bool KvCache::lasts(const SequencePages& sequence) const {
  return sequence.rows % snapshot_rows_ == 0 || sequence.rows == sequence.known ||
         sequence.rows == (sequence.asked - 1) / kPageRows * kPageRows;
}

// The state behind the sequence's last whole page, in its own slot, becomes that page's snapshot. Gives the
// slot if the page has one.
int32_t KvCache::keep_snapshot(SequencePages& sequence) {
  const int32_t page = sequence.held();
  int32_t& slot = sequence.state.from;
  int32_t spare = SequencePages::kNoSlot;
  const bool lasting = lasts(sequence);
  if (sequence.passing != PrefixTree::kRoot) states_.drop(sequence.passing);
  sequence.passing = PrefixTree::kRoot;
  if (!states_.snapshot(page)) {
    states_.keep(page, slot);
    if (sequence.rows == sequence.known) states_.part(page);
    if (!lasting) sequence.passing = page;
    if (lasting) tell_snapshot(page, slot);
  } else {  // somebody else brought it
    spare = slot;
  }
  states_.hold(page);
  slot = *states_.snapshot(page);
  return spare;
}

int64_t KvCache::end_of_step(const SequencePages& sequence, int64_t tokens, int64_t end) const {
  if (!has_states_) return end;
  for (const int64_t border : {sequence.known, (tokens - 1) / kPageRows * kPageRows,
                               (sequence.rows / snapshot_rows_ + 1) * snapshot_rows_})
    if (sequence.rows < border) end = std::min(end, border);
  return end;
}

int64_t KvCache::end_of_drafts(const SequencePages& sequence) const {
  if (!has_states_) return std::numeric_limits<int64_t>::max();
  return (sequence.rows / kPageRows + 1) * kPageRows;
}

bool KvCache::leaves(int64_t rows, int64_t tokens) const {
  return !has_states_ || rows == (tokens - 1) / kPageRows * kPageRows || rows % snapshot_rows_ == 0;
}

void KvCache::close(SequencePages& sequence, std::span<const int32_t> tokens) {
  const int32_t parent = sequence.held();
  const int64_t whole = sequence.shared * kPageRows;
  if (has_states_) {
    // The answer's end: the next turn goes on from there.
    if (const auto last = states_.snapshot(sequence.passing)) tell_snapshot(sequence.passing, *last);
    if (sequence.rows % kPageRows != 0) {
      states_.give_back(sequence.state.from);
    } else if (sequence.rows > 0) {
      states_.release(parent);
    }
    states_.give_back(sequence.state.to);
    if (sequence.ahead != SequencePages::kNoSlot) states_.give_back(sequence.ahead);
  }
  for (size_t i = 0; const int32_t page : sequence.own()) {
    if (i++ > 0 || sequence.rows == whole || has_states_) {
      pool_.give_back(page);
      continue;
    }
    const auto tail = tokens.subspan(static_cast<size_t>(whole), static_cast<size_t>(sequence.rows - whole));
    const int32_t spare = tree_.add_leaf(parent, tail, page, sequence.group.ends);
    if (spare != PrefixTree::kRoot) pool_.give_back(spare);
  }
  tree_.release(parent);
  sequence = {};
}

void KvCache::check(std::span<const SequencePages* const> open, int64_t brought,
                    std::span<const int32_t> brought_below) const {
  std::vector<int32_t> held(brought_below.begin(), brought_below.end()), own_slots, snapshots;
  std::set<int32_t> owned;
  int64_t own = brought;
  for (const SequencePages* sequence : open) {
    held.push_back(sequence->held());
    own += std::ssize(sequence->own());
    for (const int32_t page : sequence->own()) {
      CHECK(owned.insert(page).second && !tree_.contains(page), "page {} is in two places", page);
    }
    CHECK(sequence->rows >= sequence->shared * kPageRows, "{} rows", sequence->rows);
    CHECK(sequence->rows < (sequence->shared + 1) * kPageRows, "{} rows", sequence->rows);
    if (!has_states_) continue;
    own_slots.push_back(sequence->state.to);
    if (sequence->ahead != SequencePages::kNoSlot) own_slots.push_back(sequence->ahead);
    if (sequence->rows % kPageRows != 0) {
      own_slots.push_back(sequence->state.from);
    } else if (sequence->rows > 0) {
      snapshots.push_back(sequence->held());
      CHECK(states_.snapshot(sequence->held()) == sequence->state.from, "{} rows", sequence->rows);
    }
  }
  tree_.check(held);
  states_.check(own_slots, snapshots);
  CHECK(own + tree_.size() + free_pages() == pages_, "{} own, {} in the tree, {} free, of {}", own,
        tree_.size(), free_pages(), pages_);
}

}  // namespace sluice::engine
