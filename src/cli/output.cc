#include "cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "text/utf8.h"

namespace sluice::cli {
namespace {

/// Whether a character steers a terminal or hides what it shows: control characters, line ends that are none,
/// and what turns the direction of the text around it. Marks of direction (U+200E, U+200F), which Arabic and
/// Hebrew texts have, turn nothing but what stands beside them.
bool steers(std::string_view character) {
  if (character.size() == 1) {
    const auto byte = static_cast<uint8_t>(character[0]);
    return (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
  }
  const auto between = [&](std::string_view first, std::string_view last) {
    return character.size() == first.size() && first <= character && character <= last;
  };
  return between("\u0080", "\u009F") || between("\u2028", "\u202E") || between("\u2066", "\u2069") ||
         character == "\uFEFF" || between("\U000E0000", "\U000E007F");
}

}  // namespace

void print_text(std::string_view text) {
  static const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  if (!terminal) return print_as_it_is(text);
  print_as_it_is(terminal_safe(text));
}

void print_as_it_is(std::string_view text) {
  if (text.empty()) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    fail("standard output: {}", std::strerror(errno));
  }
}

void note_text(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  std::clearerr(stderr);  // the next one may get through
}

void occupy_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest numbers that are free: reading finds the end, and writing fails. It needs no file system.
    int ends[2];
    if (::pipe(ends) == 0) ::close(ends[1]);
  }
}

void finish_output() {
  const bool lost = std::ferror(stdout) != 0;
  if (std::fflush(stdout) != 0) fail("standard output: {}", std::strerror(errno));
  if (lost) fail("standard output: not everything could be written");
}

std::string piped_input() {
  struct stat info {};
  if (::fstat(STDIN_FILENO, &info) != 0 || ::isatty(STDIN_FILENO) == 1) return "";
  return read_file("-");
}

std::string short_count(double count, const char* unit) {
  for (const auto& [size, prefix] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}) {
    if (count >= size) return fmt::format("{:.2f} {}{}", count / size, prefix, unit);
  }
  return fmt::format("{:.0f} {}", count, unit);
}

std::string size_text(int64_t bytes) { return short_count(static_cast<double>(bytes), "B"); }

std::string terminal_safe(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const text::Utf8Step step = text::utf8_step(text.substr(at));
    const std::string_view character = text.substr(at, step.length);
    out += step.kind != text::Utf8Step::Valid || steers(character) ? text::kReplacement : character;
    at += step.length;
  }
  return out;
}

}  // namespace sluice::cli
