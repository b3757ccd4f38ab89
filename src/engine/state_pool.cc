#include "engine/state_pool.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "base/check.h"

namespace sluice::engine {

namespace {

// How much likelier than others an end is gone on from, and a place for each time that sequences parted
// there.
constexpr int64_t kOfEnd = 16, kOfParting = 8;
constexpr int64_t kFresh = 1024;  ///< rows within which all are as fresh

}  // namespace

StatePool::StatePool(int64_t slots) : slots_(slots), free_(static_cast<size_t>(slots)) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

bool StatePool::has_room() const {
  return !free_.empty() ||
         std::ranges::any_of(snapshots_, [](const auto& one) { return one.second.holds == 0; });
}

double StatePool::loss(const Snapshot& snapshot) const {
  const int64_t weight = snapshot.ends ? kOfEnd : 1 + kOfParting * snapshot.parted;
  return static_cast<double>(weight * snapshot.pages) / static_cast<double>(clock_ - snapshot.used + kFresh);
}

int32_t StatePool::take(const PrefixTree& tree) {
  if (free_.empty()) {
    for (auto& [page, snapshot] : snapshots_) snapshot.ends = true;
    for (auto& [page, snapshot] : snapshots_) {
      int32_t above = tree.parent(page);
      for (snapshot.pages = 1; above != PrefixTree::kRoot; above = tree.parent(above), ++snapshot.pages) {
        const auto found = snapshots_.find(above);
        if (found == snapshots_.end()) continue;
        found->second.ends = false;
        break;
      }
    }
    // Of the half that was used longest ago, the least loss.
    order_.clear();
    for (auto it = snapshots_.begin(); it != snapshots_.end(); ++it)
      if (it->second.holds == 0) order_.push_back(it);
    CHECK(!order_.empty(), "{} slots of states are too few", slots_);
    std::ranges::sort(order_, {}, [](auto it) { return std::tuple(it->second.used, it->first); });
    order_.resize(std::max<size_t>(order_.size() / 2, 1));
    const auto least = *std::ranges::min_element(order_, {}, [this](auto it) { return loss(it->second); });
    free_.push_back(least->second.slot);
    snapshots_.erase(least);
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
  const bool kept = snapshots_.try_emplace(page, Snapshot{.slot = slot, .used = clock_}).second;
  CHECK(kept, "page {} has a snapshot", page);
}

void StatePool::hold(int32_t page) { ++snapshots_.at(page).holds; }

void StatePool::release(int32_t page) {
  Snapshot& snapshot = snapshots_.at(page);
  CHECK(snapshot.holds > 0, "page {}", page);
  --snapshot.holds;
  snapshot.used = clock_;
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
