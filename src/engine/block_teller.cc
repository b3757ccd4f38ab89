#include "engine/block_teller.h"

#include <cstring>
#include <utility>

#include "base/check.h"

namespace sluice::engine {
namespace {

using events::BlockEvent;
using EventKind = BlockEvent::Kind;

uint64_t hash_of(const store::PageKey& key) {
  uint64_t hash = 0;
  std::memcpy(&hash, key.bytes.data(), sizeof hash);
  return hash;
}

}  // namespace

BlockTeller::BlockTeller(events::Sink& sink, KvCache& cache)
    : sink_(sink), cache_(cache), root_(store::root_key("blocks")) {
  cache_.watch(*this);
  events_.push_back({.kind = EventKind::Cleared});
  flush();
}

BlockTeller::~BlockTeller() { cache_.unwatch(*this); }

void BlockTeller::entered(int32_t parent, int32_t page, std::span<const int32_t> tokens, uint64_t group) {
  const bool is_first = parent == PrefixTree::kRoot;
  CHECK(is_first || keys_[static_cast<size_t>(parent)], "page {}", parent);
  const store::PageKey& before = is_first ? root_ : *keys_[static_cast<size_t>(parent)];
  const store::PageKey key = store::page_key(before, group, tokens);
  const uint64_t hash = hash_of(key);
  const auto behind = is_first ? std::nullopt : std::optional(hash_of(before));
  const bool goes_on = behind && !events_.empty() && events_.back().kind == EventKind::Stored &&
                       events_.back().hashes.back() == *behind;
  if (!goes_on) events_.push_back({.kind = EventKind::Stored, .parent = behind});
  events_.back().hashes.push_back(hash);
  events_.back().tokens.insert(events_.back().tokens.end(), tokens.begin(), tokens.end());
  if (page >= std::ssize(keys_)) keys_.resize(static_cast<size_t>(page) + 1);
  keys_[static_cast<size_t>(page)] = key;
}

void BlockTeller::leaves(int32_t page) {
  if (page >= std::ssize(keys_) || !keys_[static_cast<size_t>(page)]) return;  // unfinished
  if (events_.empty() || events_.back().kind != EventKind::Removed)
    events_.push_back({.kind = EventKind::Removed});
  events_.back().hashes.push_back(hash_of(*keys_[static_cast<size_t>(page)]));
  keys_[static_cast<size_t>(page)].reset();
}

void BlockTeller::emptied() { events_.push_back({.kind = EventKind::Cleared}); }

void BlockTeller::flush() {
  if (!events_.empty()) sink_.take(std::exchange(events_, {}));
}

}  // namespace sluice::engine
