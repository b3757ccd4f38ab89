// Tells what enters and leaves the prefix tree to whoever wants to know (events/block_event.h). A block is a
// whole page; its hash goes over its tokens, all before them and the group that may find it. One thread's
// business: the batcher's.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/kv_cache.h"
#include "events/block_event.h"
#include "store/page_key.h"

namespace sluice::engine {

class BlockTeller : public PageWatcher {
 public:
  /// Both outlive it. Begins with an empty cache, and says so: whoever heard of an earlier process at this
  /// address forgets what that had.
  BlockTeller(events::Sink& sink, KvCache& cache);
  ~BlockTeller() override;
  BlockTeller(const BlockTeller&) = delete;
  BlockTeller& operator=(const BlockTeller&) = delete;

  void entered(int32_t parent, int32_t page, std::span<const int32_t> tokens, uint64_t group) override;
  void leaves(int32_t page) override;
  void snapshot(int32_t, int32_t) override {}
  void emptied() override;

  /// Hands over what happened since the last call.
  void flush();

 private:
  events::Sink& sink_;
  KvCache& cache_;
  const store::PageKey root_;
  std::vector<std::optional<store::PageKey>> keys_;  // of whole pages in the tree, by page
  std::vector<events::BlockEvent> events_;
};

}  // namespace sluice::engine
