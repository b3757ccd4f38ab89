// The rows of sequences in pages: which pages a sequence has, and which of them it found ready. Every page is
// in one place: free, in the prefix tree (whole pages of all sequences, running or not, and ends of finished
// ones), or a sequence's own, which alone it writes to. Where a program has states, a prefix can be taken
// over up to a page whose snapshot is there, and ends are not kept. Knows tokens and page numbers only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/kv_pool.h"
#include "engine/prefix_group.h"
#include "engine/prefix_tree.h"
#include "engine/state_pool.h"
#include "program/step.h"
#include "program/tensor.h"

namespace sluice::engine {

/// What one running sequence has of the cache.
struct SequencePages {
  PrefixGroup group;
  std::vector<int32_t> pages;  ///< by position / kPageRows: first those in the tree, then its own
  int64_t shared = 0;          ///< how many of them are in the tree
  int64_t rows = 0;            ///< that are computed, from position 0 on
  int64_t known = 0;  ///< of its tokens' rows, those that are in the tree: at first, no fewer than rows
  /// Where the state behind its rows lies (at the end of a page it is that page's snapshot, else its own
  /// slot), and the slot of its own that the next step writes.
  program::StateSlots state = {.from = kNoSlot, .to = kNoSlot};
  int32_t ahead = kNoSlot;              ///< that a step writes which begins before the next one has ended
  int64_t asked = 0;                    ///< tokens that it began with
  int32_t passing = PrefixTree::kRoot;  ///< the page whose snapshot goes when the next one is there
  static constexpr int32_t kNoSlot = -1;

  /// The last page in the tree: the one that this sequence holds.
  int32_t held() const { return shared > 0 ? pages[static_cast<size_t>(shared) - 1] : PrefixTree::kRoot; }
  std::span<const int32_t> own() const { return std::span(pages).subspan(static_cast<size_t>(shared)); }
};

/// Hears of whole pages that enter the tree and leave it, and of snapshots.
class PageWatcher {
 public:
  virtual ~PageWatcher() = default;
  /// Below `parent` (PrefixTree::kRoot: the first page) there is this page now.
  virtual void entered(int32_t parent, int32_t page, std::span<const int32_t> tokens, uint64_t group) = 0;
  /// The page, or unfinished page, is about to be somebody's who writes to it.
  virtual void leaves(int32_t page) = 0;
  /// The page has a snapshot, in this slot.
  virtual void snapshot(int32_t page, int32_t slot) = 0;
  /// The tree holds nothing any more, since it was to be cleared.
  virtual void emptied() {}
};

class KvCache {
 public:
  /// Pages from one lasting snapshot to the next where nothing else asks for one.
  static constexpr int64_t kSnapshotPages = 32;

  /// state_slots: 0 if the program has no states.
  explicit KvCache(int32_t pages, int64_t state_slots = 0, int64_t snapshot_pages = kSnapshotPages)
      : pool_(pages),
        states_(state_slots),
        has_states_(state_slots > 0),
        pages_(pages),
        snapshot_rows_(snapshot_pages * program::kPageRows) {}

  int64_t pages() const { return pages_; }
  int64_t free_pages() const { return pool_.free_pages(); }
  /// Pages of prefixes that no sequence has.
  int64_t cached_pages() const { return tree_.unused(); }
  /// Pages that could be given out now: free and cached ones.
  int64_t available() const { return free_pages() + cached_pages(); }

  /// How many of the tokens' first rows are in whole pages of the tree; and how many pages would have to be
  /// available for a sequence that begins with these tokens to get pages for `rows` rows.
  struct Offer {
    int64_t rows, pages;
  };
  Offer offer(std::span<const int32_t> tokens, int64_t rows, const PrefixGroup& group = {});

  /// A sequence begins with as many of the tokens' rows as are in the cache (the result's rows). At least the
  /// last token is left to compute.
  SequencePages open(std::span<const int32_t> tokens, const PrefixGroup& group = {});
  /// Pages for `rows` rows; cached prefixes make room. False, and nothing changed: not enough are available.
  bool grow(SequencePages& sequence, int64_t rows);
  /// A slot for the state behind a step that begins ahead, where there are states. False: there is none.
  bool take_slot_ahead(SequencePages& sequence);
  /// Where a step ends, of those that go up to `end`, so that the state there can be a snapshot that somebody
  /// may want: where this sequence parts from others, at its last whole page, and every so many pages.
  int64_t end_of_step(const SequencePages& sequence, int64_t tokens, int64_t end) const;
  /// Where a step with drafts ends at most: at a page's end, as the state there may be a snapshot, too.
  int64_t end_of_drafts(const SequencePages& sequence) const;
  /// Whether a prefix of so many rows will be there to be taken over once a sequence of so many tokens is
  /// computed.
  bool leaves(int64_t rows, int64_t tokens) const;
  /// `rows` rows of the sequence are computed now; its whole pages enter the tree. `tokens` are those of the
  /// sequence. Where another sequence had brought the same page, that one takes the place of this sequence's
  /// own.
  void computed(SequencePages& sequence, std::span<const int32_t> tokens, int64_t rows);
  /// The sequence ends; what it computed stays, as long as nobody needs the room.
  void close(SequencePages& sequence, std::span<const int32_t> tokens);

  // For who brings pages from elsewhere.
  void watch(PageWatcher& watcher) { watchers_.push_back(&watcher); }
  void unwatch(PageWatcher& watcher) { std::erase(watchers_, &watcher); }
  bool has_states() const { return has_states_; }
  bool has_snapshot(int32_t page) const { return states_.snapshot(page).has_value(); }
  /// The chain of whole pages that a sequence of these tokens could take over, snapshots or not.
  void find(std::span<const int32_t> tokens, std::vector<int32_t>& chain, const PrefixGroup& group) const;
  /// A page that is the caller's; kRoot: so many are not available beyond it.
  int32_t take_page(int64_t reserve);
  void give_back(int32_t page) { pool_.give_back(page); }
  void hold(int32_t page) { tree_.hold(page); }
  void release(int32_t page) { tree_.release(page); }
  /// The caller's page has the rows of these tokens below `parent`, which he holds; his hold moves down.
  /// Gives the page that has them now, his own or one that was there.
  int32_t adopt(int32_t parent, std::span<const int32_t> tokens, int32_t page, uint64_t group);
  /// A slot in which to put a page's snapshot, which is the page's from now on; none: it has one,
  /// or there is no slot.
  std::optional<int32_t> adopt_snapshot(int32_t page);
  /// Gives up what no sequence has.
  void clear();

  /// For tests: CHECKs that every page is in one place, given all sequences that are open; `brought`: pages
  /// that whoever brings them has, and `held`: those in the tree that he holds.
  void check(std::span<const SequencePages* const> open, int64_t brought = 0,
             std::span<const int32_t> held = {}) const;

 private:
  void restorable(std::vector<int32_t>& chain) const;
  int32_t evict();
  void leaves(int32_t page) const;
  void tell_snapshot(int32_t page, int32_t slot) const;
  void stepped(SequencePages& sequence, int32_t snapshot);
  bool lasts(const SequencePages& sequence) const;
  int32_t keep_snapshot(SequencePages& sequence);

  KvPool pool_;
  PrefixTree tree_;
  StatePool states_;
  bool has_states_;
  int64_t pages_;
  int64_t snapshot_rows_;
  std::vector<PageWatcher*> watchers_;
  std::vector<int32_t> chain_;  // of offer()
};

}  // namespace sluice::engine
