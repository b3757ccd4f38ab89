// Pages of the prefix tree beyond the device: whole pages go to a store (memory of the host, a disk) once
// they are complete, or, where it has no disk, when they leave the device; and those that a waiting sequence
// begins with come back before it is admitted, where that is quicker than computing them. A page is known
// there by a chained hash of all tokens up to its end (store/page_key.h).
//
// All copies run beside the steps, or, where the device's memory is the host's, between them and for a small
// share of the time. One thread's business: the batcher's. Nobody waits for a disk.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/scheduler.h"
#include "program/page_copier.h"
#include "store/page_store.h"

namespace sluice::engine {

/// What moving and computing takes, as measured lately; 0: not known.
struct PageRates {
  double read_seconds_per_byte = 0;  ///< from the disk
  double copy_seconds_per_byte = 0;  ///< to the device
  double compute_seconds_per_row = 0;
};
/// Whether so many pages are quicker brought than computed. What is not known takes no time to bring, and any
/// time to compute.
bool bringing_pays(const PageRates& rates, int64_t pages, int64_t pages_on_disk, int64_t page_bytes);

class PageKeeper : public PageWatcher, public PageSource {
 public:
  /// All of it outlives the keeper.
  PageKeeper(program::PageCopier& copier, store::PageStore& store, KvCache& cache);
  /// Waits for the copies that have begun.
  ~PageKeeper() override;
  PageKeeper(const PageKeeper&) = delete;
  PageKeeper& operator=(const PageKeeper&) = delete;

  void entered(int32_t parent, int32_t page, std::span<const int32_t> tokens, uint64_t group) override;
  void leaves(int32_t page) override;
  void snapshot(int32_t page, int32_t slot) override;

  bool bring(Sequence& sequence, std::span<const int32_t> known, int64_t running) override;
  void drop(Sequence& sequence) override;
  int64_t coming() const override { return std::ssize(coming_); }
  int64_t own_pages() const override;
  std::vector<int32_t> held() const override;

  /// Goes on with what is on its way. step_seconds: that the last step took, of which copies may take a
  /// share; 0: nobody waits.
  void advance(double step_seconds);
  /// Whether anything is on its way.
  bool busy() const { return !pending_.empty() || !leaving_.empty() || !coming_.empty(); }
  /// A step of so many rows of prompts took so long.
  void observe(int64_t prompt_rows, double seconds);
  /// Gives up what no sequence has, on the device and in the store.
  void clear();

  int64_t brought_total() const { return brought_total_; }

 private:
  /// A page on its way to the store.
  struct Leaving {
    int32_t page;
    store::PageStore::Slot slot;
    program::CopyTicket copy;
  };
  /// A page on its way from the store.
  struct Arriving {
    store::PageStore::Slot slot;
    int32_t page = PrefixTree::kRoot;  ///< kRoot: its copy to the device has not begun
    program::CopyTicket copy{};
  };
  /// Pages of a sequence on their way from the store.
  struct Coming {
    Sequence* sequence;
    int64_t running;                   ///< sequences, for each of which a page stays available
    std::vector<store::PageKey> keys;  ///< of the pages (none: their last snapshot alone), in their order ...
    size_t first;                      ///< ... of which so many of the sequence's were in the tree
    int32_t parent;                    ///< the last page in the tree, which is held
    size_t asked = 0, placed = 0, done = 0;
    std::deque<Arriving> arriving = {};  ///< of keys [done, asked)
  };

  std::optional<store::PageKey> key_of(int32_t page) const;
  store::PageKey& remember(int32_t page, const store::PageKey& key);
  bool copy_out(int32_t page);
  void end_copies_out(bool wait);
  void send(double seconds);
  void receive(Coming& coming, double until_seconds);
  void ask(Coming& coming);
  void place(Coming& coming, double until_seconds);
  void cut(Coming& coming, size_t pages);
  bool bring_snapshot(Coming& coming);
  bool bring_lost_snapshot(Sequence& sequence, int64_t running);
  bool begin(Coming coming);
  void end(Coming& coming);

  program::PageCopier& copier_;
  store::PageStore& store_;
  KvCache& cache_;
  const int64_t page_bytes_, state_bytes_;
  std::vector<std::optional<store::PageKey>> keys_;  // of whole pages in the tree, by page
  std::deque<int32_t> pending_;                      // complete pages that are to be copied out
  std::deque<Leaving> leaving_;                      // in the order in which their copies began
  std::list<Coming> coming_;
  PageRates rates_;
  bool forgets_ = false;  // what leaves is not wanted
  int64_t brought_total_ = 0;
  std::vector<int32_t> chain_;
};

}  // namespace sluice::engine
