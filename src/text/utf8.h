// UTF-8, one character at a time: the one place that knows which byte sequences are well formed.
// Knows bytes only; what is done about a bad one is the caller's choice.
#pragma once

#include <cstddef>
#include <string_view>

namespace sluice::text {

/// U+FFFD REPLACEMENT CHARACTER, in UTF-8.
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// What stands at the front of some bytes, and how many bytes that is.
struct Utf8Step {
  enum Kind {
    Valid,       ///< a whole character
    Invalid,     ///< no character, whatever follows: the longest beginning of one, or one stray byte
    Incomplete,  ///< the bytes end inside a character that is well formed so far
  };
  Kind kind;
  size_t length;  ///< 1 to 4
};

/// Looks at the front of `bytes`, which must not be empty. Well formed is what Table 3-7 of the Unicode
/// Standard lists: no overlong forms, no surrogates, nothing above U+10FFFF. The lengths of invalid steps
/// follow its advice on U+FFFD ("maximal subparts"), so that every decoder replaces alike.
Utf8Step utf8_step(std::string_view bytes);

/// The number of bytes at the front of `text` that are whole characters.
size_t utf8_valid_prefix(std::string_view text);

}  // namespace sluice::text
