// Between whom cached prefixes are shared.
#pragma once

#include <cstdint>

namespace sluice::engine {

/// Whose prefixes a sequence may take over, and who may take over its own: those of the same group alone. So
/// nobody learns from a count or a clock what others wrote.
struct PrefixGroup {
  uint64_t pages = 0;  ///< of whole pages
  /// Of unfinished last pages. Where strangers share whole pages this is another one than theirs: a whole
  /// page says something only to who guesses all of its tokens at once, an unfinished one token by token.
  uint64_t ends = 0;
  friend bool operator==(const PrefixGroup&, const PrefixGroup&) = default;
};

}  // namespace sluice::engine
