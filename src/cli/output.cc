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

void print_text(std::string_view text) {
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

std::string terminal_safe(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const auto next = static_cast<uint8_t>(i + 1 < text.size() ? text[i + 1] : 0);
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) {
      out += text::kReplacement;
    } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F
      out += text::kReplacement;
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace sluice::cli
