#include "server/constraint_cache.h"

#include <algorithm>

namespace sluice::server {

Bound ConstraintCache::Entry::copy() {
  std::shared_ptr<ConstraintUse> now = use.lock();
  if (!now) use = now = std::make_shared<ConstraintUse>(constraint->bytes());
  return {constraint->clone(), std::move(now)};
}

Bound ConstraintCache::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(entries_, key, &Entry::key);
  if (found == entries_.end()) return {};
  entries_.splice(entries_.begin(), entries_, found);
  return entries_.front().copy();
}

Bound ConstraintCache::get(const std::string& key, const Make& make) {
  if (auto kept = find(key)) return kept;
  std::unique_ptr<text::TokenConstraint> made = make();  // without the lock: it may take a while
  if (!made) return {};
  Entry fresh{key, std::move(made)};
  Bound copy = fresh.copy();
  if (key.size() > kMostKeyBytes) return copy;
  const std::lock_guard lock(mutex_);
  entries_.remove_if([&](const Entry& other) { return other.key == key; });  // made twice at the same time
  entries_.push_front(std::move(fresh));
  size_t bytes = 0, kept = 0;  // masks are found as constraints are used, so they are counted anew
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    bytes += entry->constraint->bytes();
    const bool fits = kept == 0 || (kept < kMostEntries && bytes <= kMostBytes);
    kept += fits ? 1 : 0;
    entry = fits ? std::next(entry) : entries_.erase(entry);
  }
  return copy;
}

}  // namespace sluice::server
