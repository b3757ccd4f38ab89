// Finds the tokens that are written out in a text as they are ("<|user|>"), before anything else cuts it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::text {

/// A set of strings with ids. Finding costs a look at each byte of the text, plus what strings begin alike.
class SpecialTokens {
 public:
  struct Match {
    size_t begin;
    size_t length;
    int32_t id;  ///< -1: nothing found
  };

  /// Takes strings that outlive it; empty ones are left out, and of equal ones the lowest id counts.
  explicit SpecialTokens(std::vector<std::pair<std::string_view, int32_t>> tokens);

  /// The leftmost match at or after `from`, the longest of those that begin there.
  Match find(std::string_view text, size_t from) const;

 private:
  Match longest_at(std::string_view text, size_t at) const;

  std::vector<std::pair<std::string_view, int32_t>> tokens_;   ///< sorted by their bytes
  std::array<std::pair<uint32_t, uint32_t>, 256> by_first_{};  ///< range in tokens_ by first byte
};

}  // namespace sluice::text
