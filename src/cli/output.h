// Standard output, error and input of the commands: bytes as they are, and failures told. Everything that a
// command prints goes through here: fmt::print throws where standard error cannot be written.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace sluice::cli {

/// Prints to standard output at once, on a terminal what is safe there (terminal_safe). Throws Error when it
/// is lost: the reader may have gone.
void print_text(std::string_view text);
/// The same for what is safe already and may move the cursor itself.
void print_as_it_is(std::string_view text);
template <typename... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format(format, std::forward<Args>(args)...));
}

/// Prints to standard error. That nobody hears it is no failure: what a command is for is on standard output.
void note_text(std::string_view text);
template <typename... Args>
void note(fmt::format_string<Args...> format, Args&&... args) {
  note_text(fmt::format(format, std::forward<Args>(args)...));
}

/// To either of the two, with that one's rule, or to a file.
template <typename... Args>
void print_to(std::FILE* out, fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  if (out == stderr) return note_text(text);
  if (out == stdout) return print_text(text);
  std::fwrite(text.data(), 1, text.size(), out);
}

/// To be called first: makes sure that no file which is opened later becomes standard input, output or error
/// because the program was started without one. They are closed to reading and writing as before.
void occupy_standard_streams();

/// To be called last: throws Error when something that was printed to standard output is lost.
void finish_output();

/// Standard input up to its end, or nothing when it is a terminal or not there.
std::string piped_input();

/// "17.18 GB": three or four digits and a decimal unit.
std::string short_count(double count, const char* unit);
/// Of bytes, as short_count has it.
std::string size_text(int64_t bytes);

/// A text out of a model or a file made safe for a terminal: control characters other than tabs and newlines,
/// those that override the direction of text, and bytes that are no UTF-8 become U+FFFD.
std::string terminal_safe(std::string_view text);

}  // namespace sluice::cli
