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

#include "text/constraint.h"

namespace sluice::server {

/// From any thread.
class ConstraintCache {
 public:
  static constexpr size_t kMostEntries = 32;
  static constexpr size_t kMostBytes = size_t{256} << 20;  ///< of all together, but for the last used one
  static constexpr size_t kMostKeyBytes = 256 << 10;

  using Make = std::function<std::unique_ptr<text::TokenConstraint>()>;
  /// A fresh copy of what make() gives, or gave for the same key before. Throws what make() throws, and then
  /// keeps nothing.
  std::unique_ptr<text::TokenConstraint> get(const std::string& key, const Make& make);

 private:
  std::unique_ptr<text::TokenConstraint> find(const std::string& key);

  std::mutex mutex_;
  std::list<std::pair<std::string, std::unique_ptr<text::TokenConstraint>>> entries_;  ///< last used first
};

}  // namespace sluice::server
