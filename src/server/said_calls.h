// Calls that a model made lately, as it wrote them. Clients that read arguments into a table of their
// language give them back with their keys in another order; a template would render them so, and all from
// there on would have to be read again. Knows the order of keys, and nothing of tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "server/fields.h"

namespace sluice::server {

/// From any thread.
class SaidCalls {
 public:
  /// `arguments`: a JSON object as text. The oldest go when there are too many. `group`: whose they are;
  /// others do not find them.
  void keep(uint64_t group, const std::string& name, const std::string& arguments);
  /// Calls in a conversation's messages whose name and arguments are those of one that was kept get their
  /// keys in its order. What they say stays as it is.
  void restore(uint64_t group, Json& messages);

 private:
  static constexpr size_t kMostCalls = 4096, kMostBytes = size_t{16} << 20, kMostKeys = 256;
  static constexpr size_t kLongest = size_t{256} << 10;  ///< of one's arguments

  struct Said {
    size_t hash;
    uint64_t group;
    std::string name, sorted, arguments;
    size_t bytes() const { return name.size() + sorted.size() + arguments.size(); }
  };
  std::optional<std::string> find(uint64_t group, const std::string& name, const std::string& sorted);
  void restore_call(uint64_t group, Json& function);

  std::mutex mutex_;
  std::list<Said> said_;  ///< the latest first
  std::unordered_map<size_t, std::list<Said>::iterator> by_hash_;
  size_t bytes_ = 0;
};

}  // namespace sluice::server
