// The slots of states of sequences (program/step.h): free, a running sequence's own, or a snapshot: the state
// behind the last row of a page that is in the prefix tree, kept with it, so that whoever begins with that
// page's prefix goes on from there. Knows numbers only; what a state is is the program's business.
//
// Where slots are scarce, the newer half of the snapshots stays: edits of the last turns begin there. Of the
// older half the one goes that is the least loss: the rows that are read again without it, those behind the
// snapshot above it, times how likely somebody goes on from there. That falls with the rows that were
// computed since, so that of one conversation snapshots lie the further apart the longer ago they were made.
// An end, with no snapshot below, counts for more: its next turn goes on there. So does a place where
// sequences have parted: another one may begin alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/prefix_tree.h"

namespace sluice::engine {

class StatePool {
 public:
  explicit StatePool(int64_t slots);

  /// Slots that so many sequences at once need: each reads one and writes another.
  static constexpr int64_t least_slots(int64_t sequences) { return 2 * sequences; }
  /// And where steps begin ahead, which write a third one.
  static constexpr int64_t slots_ahead(int64_t sequences) { return 3 * sequences; }
  /// Slots that are worth having for them: as many again for snapshots, and some for a long conversation
  /// alone.
  static constexpr int64_t wanted_slots(int64_t sequences) { return std::max<int64_t>(4 * sequences, 16); }

  /// Whether take() finds one.
  bool has_room() const;
  /// A slot: a free one, or else that of the snapshot that is the least loss and that nobody holds.
  int32_t take(const PrefixTree& tree);
  void give_back(int32_t slot) { free_.push_back(slot); }

  /// The slot of a page's snapshot, if it has one.
  std::optional<int32_t> snapshot(int32_t page) const;
  /// The slot, which was the caller's, is the page's snapshot from now on.
  void keep(int32_t page, int32_t slot);
  /// Sequences have parted behind a page that has a snapshot.
  void part(int32_t page) { ++snapshots_.at(page).parted; }
  /// So many rows were computed.
  void pass(int64_t rows) { clock_ += rows; }
  /// A page's snapshot stays until as many calls of release().
  void hold(int32_t page);
  void release(int32_t page);
  /// Gives up a page's snapshot unless somebody holds it.
  void drop(int32_t page);
  /// The page is not what it was; its snapshot, if it has one, is held by nobody.
  void forget(int32_t page);

  int64_t free_slots() const { return std::ssize(free_); }
  int64_t snapshots() const { return std::ssize(snapshots_); }
  /// For tests: CHECKs that every slot is in one place, given those that sequences own and the pages whose
  /// snapshots they hold, once a hold.
  void check(const std::vector<int32_t>& own, const std::vector<int32_t>& held) const;

 private:
  struct Snapshot {
    int32_t slot;
    int32_t holds = 0;
    int64_t used = 0;    ///< when it was kept or released last: rows computed before
    int64_t parted = 0;  ///< how often sequences parted there
    int64_t pages = 0;   ///< take()'s: from the snapshot above it, or the beginning
    bool ends = true;    ///< take()'s: there is none below it
  };
  double loss(const Snapshot& snapshot) const;

  int64_t slots_;
  std::vector<int32_t> free_;                        // the last is the next to be given out
  std::unordered_map<int32_t, Snapshot> snapshots_;  // by page
  std::vector<std::unordered_map<int32_t, Snapshot>::iterator> order_;  // take()'s
  int64_t clock_ = 0;                                                   // rows computed
};

}  // namespace sluice::engine
