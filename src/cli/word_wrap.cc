#include "cli/word_wrap.h"

#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <cwchar>

#include "cli/output.h"

namespace sluice::cli {
namespace {

constexpr int kTab = 8;
constexpr int kLeastColumns = 20;           // where nothing is gained by wrapping
constexpr size_t kMostWordBytes = 1 << 12;  // marks that take no column could make a word of any length

/// Bytes of the character that the text begins with; 1 for what is none.
size_t character_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const size_t bytes = first < 0xC0 ? 1 : (first < 0xE0 ? 2 : (first < 0xF0 ? 3 : 4));
  return std::min(bytes, text.size());
}

/// Columns of a character: 0 of marks, 2 of wide ones.
int width_of(std::string_view character) {
  if (character.size() == 1) return 1;
  std::mbstate_t state{};
  wchar_t wide = 0;
  const size_t got = std::mbrtowc(&wide, character.data(), character.size(), &state);
  if (got != character.size()) return 1;
  return std::max(0, ::wcwidth(wide));
}

}  // namespace

bool terminal_has_sequences() {
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && std::string_view(terminal) != "dumb";
}

int terminal_columns(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void WordWrap::begin_line() {
  column_ = word_columns_ = 0;
  word_.clear();
}

// A line that begins with ``` or ~~~ begins or ends code.
void WordWrap::note_beginning(std::string_view character) {
  if (!at_beginning_ || (beginning_.empty() && character == " ")) return;
  beginning_ += character;
  if (beginning_ == "```" || beginning_ == "~~~") in_code_ = !in_code_;
  if (beginning_.size() >= 3) at_beginning_ = false;
}

void WordWrap::put(std::string_view character, int width) {
  const bool space = character == " " || character == "\t";
  if (most_ > 0 && !in_code_ && column_ + width > most_) {
    if (space) {  // the edge itself separates the words
      if (!wrapped_) out_ += '\n';
      wrapped_ = true;
      return begin_line();
    }
    if (word_columns_ > 0 && word_columns_ < column_) {
      out_ += fmt::format("\x1b[{}D\x1b[K\n{}", word_columns_, word_);
      column_ = word_columns_;
    } else {  // at the end of a word, or of one that is longer than a line
      out_ += '\n';
      begin_line();
    }
  } else if (space && wrapped_ && column_ == 0) {
    return;
  }
  wrapped_ = false;
  out_ += character;
  column_ += width;
  if (space || width > 1) {  // between wide characters a line may end anywhere
    word_.clear();
    word_columns_ = 0;
    return;
  }
  word_ += character;
  word_columns_ += width;
  if (word_.size() > kMostWordBytes) word_.clear(), word_columns_ = 0;
}

std::string WordWrap::push(std::string_view piece, int columns) {
  // The last column stays free: a cursor that waits behind it cannot be moved back reliably.
  most_ = columns >= kLeastColumns ? columns - 1 : 0;
  out_.clear();
  while (!piece.empty()) {
    const std::string_view character = piece.substr(0, character_bytes(piece));
    piece.remove_prefix(character.size());
    if (character == "\n") {
      out_ += '\n';
      begin_line();
      beginning_.clear();
      at_beginning_ = true;
      wrapped_ = false;
      continue;
    }
    note_beginning(character);
    put(character, character == "\t" ? kTab - column_ % kTab : width_of(character));
  }
  return out_;
}

ModelText::ModelText()
    : terminal_(::isatty(STDOUT_FILENO) == 1), wraps_(terminal_ && terminal_has_sequences()) {
  if (!wraps_) return;
  // Columns of characters are counted by the locale.
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(::nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

void ModelText::print(std::string_view text) {
  if (!terminal_) return print_text(text);
  const std::string safe = terminal_safe(text);
  print_as_it_is(wraps_ ? wrap_.push(safe, terminal_columns(STDOUT_FILENO)) : safe);
}

}  // namespace sluice::cli
