#include "server/constraint_cache.h"

#include <algorithm>

namespace sluice::server {

std::unique_ptr<text::TokenConstraint> ConstraintCache::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) { return entry.first == key; });
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  return entries_.front().second->clone();
}

std::unique_ptr<text::TokenConstraint> ConstraintCache::get(const std::string& key, const Make& make) {
  if (auto kept = find(key)) return kept;
  std::unique_ptr<text::TokenConstraint> made = make();  // without the lock: it may take a while
  if (!made || key.size() > kMostKeyBytes) return made;
  auto copy = made->clone();
  const std::lock_guard lock(mutex_);
  entries_.remove_if([&](const auto& entry) { return entry.first == key; });  // made twice at the same time
  entries_.emplace_front(key, std::move(made));
  size_t bytes = 0, kept = 0;  // masks are found as constraints are used, so they are counted anew
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    bytes += entry->second->bytes();
    const bool fits = kept == 0 || (kept < kMostEntries && bytes <= kMostBytes);
    kept += fits ? 1 : 0;
    entry = fits ? std::next(entry) : entries_.erase(entry);
  }
  return copy;
}

}  // namespace sluice::server
