// Standard output and input of the commands: bytes as they are, and failures told.
#pragma once

#include <string>
#include <string_view>

namespace sluice::cli {

/// Prints to standard output at once. Throws Error when it is lost: the reader may have gone.
void print_text(std::string_view text);

/// Standard input up to its end, or nothing when it is a terminal or not there.
std::string piped_input();

/// "17.18 GB": three or four digits and a decimal unit.
std::string short_count(double count, const char* unit);

/// A text out of a model or a file made safe for a terminal: control characters other than tabs and newlines
/// become U+FFFD. The text must consist of whole UTF-8 characters.
std::string terminal_safe(std::string_view text);

}  // namespace sluice::cli
