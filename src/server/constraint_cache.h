// Constraints that requests asked for, kept for the next request that asks for the same: it copies one, and
// finds the masks that were worked out for those before it. Knows what a constraint was made of as a string,
// and nothing of how.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "server/memory.h"
#include "text/constraint.h"

namespace sluice::server {

/// The memory of a constraint, which all of its copies share: it is counted as long as any request has one,
/// and once. From any thread.
class ConstraintUse {
 public:
  explicit ConstraintUse(size_t bytes) : bytes_(bytes) {}
  /// Counts it, if nobody has yet, whatever the limit says: it is there.
  void count(MemoryShare share) {
    const std::lock_guard lock(mutex_);
    if (share_.bytes() == 0) share_ = std::move(share), share_.set(bytes_);
  }

 private:
  size_t bytes_;
  std::mutex mutex_;
  MemoryShare share_;
};

/// What binds an answer; null: nothing.
struct Bound {
  std::unique_ptr<text::TokenConstraint> constraint;
  std::shared_ptr<ConstraintUse> use;
  text::TokenConstraint* operator->() const { return constraint.get(); }
  explicit operator bool() const { return constraint != nullptr; }
};

/// From any thread.
class ConstraintCache {
 public:
  static constexpr size_t kMostEntries = 32;
  static constexpr size_t kMostBytes = size_t{256} << 20;  ///< of all together, but for the last used one
  static constexpr size_t kMostKeyBytes = 256 << 10;

  using Make = std::function<std::unique_ptr<text::TokenConstraint>()>;
  /// A fresh copy of what make() gives, or gave for the same key before. Throws what make() throws, and then
  /// keeps nothing.
  Bound get(const std::string& key, const Make& make);

 private:
  struct Entry {
    std::string key;
    std::unique_ptr<text::TokenConstraint> constraint;
    std::weak_ptr<ConstraintUse> use = {};
    Bound copy();
  };
  Bound find(const std::string& key);

  std::mutex mutex_;
  std::list<Entry> entries_;  ///< last used first
};

}  // namespace sluice::server
