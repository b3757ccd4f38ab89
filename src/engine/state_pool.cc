#include "engine/state_pool.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/check.h"

namespace sluice::engine {

StatePool::StatePool(int64_t slots) : slots_(slots), free_(static_cast<size_t>(slots)) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

bool StatePool::has_room() const {
  return !free_.empty() ||
         std::ranges::any_of(snapshots_, [](const auto& one) { return one.second.holds == 0; });
}

int32_t StatePool::take() {
  if (free_.empty()) {
    auto oldest = snapshots_.end();
    for (auto it = snapshots_.begin(); it != snapshots_.end(); ++it) {
      if (it->second.holds > 0) continue;
      if (oldest == snapshots_.end() || it->second.used < oldest->second.used) oldest = it;
    }
    CHECK(oldest != snapshots_.end(), "{} slots of states are too few", slots_);
    free_.push_back(oldest->second.slot);
    snapshots_.erase(oldest);
  }
  const int32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

std::optional<int32_t> StatePool::snapshot(int32_t page) const {
  const auto found = snapshots_.find(page);
  return found == snapshots_.end() ? std::nullopt : std::optional(found->second.slot);
}

void StatePool::keep(int32_t page, int32_t slot) {
  const bool kept = snapshots_.try_emplace(page, Snapshot{.slot = slot, .used = ++clock_}).second;
  CHECK(kept, "page {} has a snapshot", page);
}

void StatePool::hold(int32_t page) { ++snapshots_.at(page).holds; }

void StatePool::release(int32_t page) {
  Snapshot& snapshot = snapshots_.at(page);
  CHECK(snapshot.holds > 0, "page {}", page);
  --snapshot.holds;
  snapshot.used = ++clock_;
}

void StatePool::drop(int32_t page) {
  const auto found = snapshots_.find(page);
  if (found == snapshots_.end() || found->second.holds > 0) return;
  free_.push_back(found->second.slot);
  snapshots_.erase(found);
}

void StatePool::forget(int32_t page) {
  const auto found = snapshots_.find(page);
  if (found == snapshots_.end()) return;
  CHECK(found->second.holds == 0, "page {}", page);
  free_.push_back(found->second.slot);
  snapshots_.erase(found);
}

void StatePool::check(const std::vector<int32_t>& own, const std::vector<int32_t>& held) const {
  std::set<int32_t> seen(free_.begin(), free_.end());
  auto count = std::ssize(free_);
  for (const int32_t slot : own) seen.insert(slot), ++count;
  for (const auto& [page, snapshot] : snapshots_) {
    seen.insert(snapshot.slot), ++count;
    CHECK(snapshot.holds == std::count(held.begin(), held.end(), page), "page {}: {} holds", page,
          snapshot.holds);
  }
  CHECK(count == slots_ && std::ssize(seen) == slots_, "{} of {} slots of states, {} distinct", count, slots_,
        seen.size());
}

}  // namespace sluice::engine
