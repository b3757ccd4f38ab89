// The slots of states of sequences (program/step.h): free, a running sequence's own, or a snapshot: the state
// behind the last row of a page that is in the prefix tree, kept with it, so that whoever begins with that
// page's prefix goes on from there. Knows numbers only; what a state is is the program's business.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace sluice::engine {

class StatePool {
 public:
  explicit StatePool(int64_t slots);

  /// Slots that so many sequences at once need: each reads one and writes another.
  static constexpr int64_t least_slots(int64_t sequences) { return 2 * sequences; }
  /// And where steps begin ahead, which write a third one.
  static constexpr int64_t slots_ahead(int64_t sequences) { return 3 * sequences; }
  /// Slots that are worth having for them: as many again for snapshots, and some for one sequence alone.
  static constexpr int64_t wanted_slots(int64_t sequences) { return sequences > 1 ? 4 * sequences : 8; }

  /// Whether take() finds one.
  bool has_room() const;
  /// A slot: a free one, or else that of the snapshot that was used longest ago and that nobody holds.
  int32_t take();
  void give_back(int32_t slot) { free_.push_back(slot); }

  /// The slot of a page's snapshot, if it has one.
  std::optional<int32_t> snapshot(int32_t page) const;
  /// The slot, which was the caller's, is the page's snapshot from now on.
  void keep(int32_t page, int32_t slot);
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
    uint64_t used = 0;  ///< when it was kept or released last: a running number
  };

  int64_t slots_;
  std::vector<int32_t> free_;                        // the last is the next to be given out
  std::unordered_map<int32_t, Snapshot> snapshots_;  // by page
  uint64_t clock_ = 0;
};

}  // namespace sluice::engine
