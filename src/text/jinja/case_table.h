// Upper and lower case of single characters (Unicode 14, mappings of one character to one character).
#pragma once

namespace sluice::text::jinja {

/// The character itself when it has no such form, or one of several characters.
char32_t upper_of(char32_t code);
char32_t lower_of(char32_t code);

}  // namespace sluice::text::jinja
