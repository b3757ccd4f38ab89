// Pages of the cache whose rows are known by their tokens: a tree in which every page lies under the page
// with the tokens before its own. So the way from the root to a page spells a prefix, and whoever begins
// alike finds it, within a group: what one group has is as though it were not there for the others. Knows
// tokens, groups and page numbers; where a page lies and who fills it is not its business.
//
// Inner pages are whole. A leaf may hold fewer rows: the end of a sequence that nobody went on with. Whole
// pages are shared and never written again; a leaf that nobody uses can be taken out, and then belongs to the
// taker alone.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "program/tensor.h"

namespace sluice::engine {

class PrefixTree {
 public:
  /// What stands for "no page": the root.
  static constexpr int32_t kRoot = -1;

  /// Pages that the tree has, and those among them that are neither held nor lie above one that is.
  int64_t size() const { return size_; }
  bool contains(int32_t page) const { return page + 1 < std::ssize(nodes_) && node(page).rows > 0; }
  int64_t unused() const { return unused_; }
  /// The page above one that the tree has; kRoot: none. And whether there are pages below it.
  int32_t parent(int32_t page) const { return node(page).parent; }
  bool has_children(int32_t page) const { return !node(page).children.empty(); }
  /// How many of a chain's pages (as find() gives it) are unused: the last ones.
  int64_t unused_of(std::span<const int32_t> chain) const;

  /// Appends the longest chain of a group's whole pages that the tokens begin with.
  void find(std::span<const int32_t> tokens, std::vector<int32_t>& chain, uint64_t group = 0) const;

  /// Keeps a page and all above it from being evicted, until as many calls of release(). kRoot: nothing.
  void hold(int32_t page);
  void release(int32_t page);

  /// Puts a page of kPageRows tokens under `parent`, which the caller holds; his hold moves down to it. Gives
  /// the page that has these tokens now: another one if it was there before, and then `page` stays the
  /// caller's.
  int32_t extend(int32_t parent, std::span<const int32_t> tokens, int32_t page, uint64_t group = 0);

  /// Puts an unfinished page (1 to kPageRows - 1 tokens) under `parent`, held by nobody. Gives the page that
  /// is not needed any more and is the caller's now: `page` itself when its tokens are there already, one
  /// whose tokens it repeats, or kRoot. Its group may be another one than that of the pages above.
  int32_t add_leaf(int32_t parent, std::span<const int32_t> tokens, int32_t page, uint64_t group = 0);

  /// Takes out the group's unused leaf under `parent` that shares most rows with `tokens`: all that they are,
  /// or half of its own or more; else keeping it is worth more. Rows past `rows` are the taker's to
  /// overwrite.
  struct Taken {
    int32_t page;
    int64_t rows;
  };
  std::optional<Taken> take_leaf(int32_t parent, std::span<const int32_t> tokens, uint64_t group = 0);

  /// Takes out the unused leaf that was released longest ago; kRoot: there is none.
  int32_t evict();

  /// For tests: CHECKs that all that is kept twice agrees. `held` has the pages that callers hold, once a
  /// hold.
  void check(std::span<const int32_t> held) const;

 private:
  /// By which a page is known among those under the same one.
  struct Key {
    uint64_t group;
    std::span<const int32_t> tokens;
  };
  struct Node {
    std::array<int32_t, program::kPageRows> tokens;
    uint64_t group = 0;
    int32_t rows = 0;  ///< 0: not in the tree
    int32_t parent = kRoot;
    int32_t holds = 0;              ///< of this page and all below it
    uint64_t released = 0;          ///< when a hold on it, or below it, was last released: a running number
    std::vector<int32_t> children;  ///< in the order of their groups and tokens

    Key key() const { return {group, {tokens.data(), static_cast<size_t>(rows)}}; }
  };

  Node& node(int32_t page) { return nodes_[static_cast<size_t>(int64_t{page} + 1)]; }
  const Node& node(int32_t page) const { return nodes_[static_cast<size_t>(int64_t{page} + 1)]; }
  static bool before(const Key& a, const Key& b);
  static int64_t common(const Key& a, const Key& b);
  size_t place(const Node& parent, const Key& key) const;
  int32_t child(int32_t parent, const Key& key) const;
  bool is_free_leaf(int32_t page) const;
  void insert(int32_t parent, const Key& key, int32_t page);
  void remove(int32_t page);
  void start_use(int32_t page);
  void end_use(int32_t page);

  // The root, then pages by number, as far as one was ever put in: a cache may have room for far more than it
  // will hold. Growing moves no node.
  std::deque<Node> nodes_ = std::deque<Node>(1);
  std::set<std::pair<uint64_t, int32_t>> oldest_;  // unused leaves: (released, page)
  uint64_t clock_ = 0;
  int64_t size_ = 0, unused_ = 0;
};

}  // namespace sluice::engine
