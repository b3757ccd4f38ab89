// Characters of UTF-8 texts as Python counts, classifies and folds them.
// A byte that is part of no character counts as one character and stays as it is.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::text::jinja {

/// The character at the front of a text that is not empty.
struct Character {
  char32_t code;  ///< U+FFFD for a byte that is part of no character
  size_t length;  ///< in bytes
};
Character first_character(std::string_view text);

size_t count_characters(std::string_view text);
/// Views of the characters.
std::vector<std::string_view> split_characters(std::string_view text);
/// The byte at which character `index` starts; the text's size when there are not so many.
size_t byte_of_character(std::string_view text, size_t index);

void append_utf8(std::string& out, char32_t code);

/// Python's str.isspace of one character.
bool is_space(char32_t code);
/// Whether Python's repr prints the character as it is. Unassigned code points count as printable.
bool is_printable(char32_t code);
bool is_upper(char32_t code);
bool is_lower(char32_t code);
/// A letter: exact for ASCII and for letters with case; beyond, everything outside the blocks of symbols.
bool is_alpha(char32_t code);

/// Case mappings of single characters to single characters, and upper-case sharp s.
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
/// First character upper, the others lower.
std::string capitalize(std::string_view text);
/// Python's str.title: a letter is upper when no letter stands before it.
std::string title(std::string_view text);
std::string swap_case(std::string_view text);

std::string_view strip_spaces(std::string_view text, bool left, bool right);
/// Takes off characters that stand in `set`.
std::string_view strip_set(std::string_view text, std::string_view set, bool left, bool right);
/// Python's str.splitlines.
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);

}  // namespace sluice::text::jinja
