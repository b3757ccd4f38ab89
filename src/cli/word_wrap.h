// A text that comes piece by piece, wrapped at words for a terminal. Knows columns; what the text says is not
// its business, but for fences of code, whose lines stay as they are.
#pragma once

#include <string>
#include <string_view>

namespace sluice::cli {

/// What is printed goes out at once; a word that turns out too long for its line is taken back and begun anew
/// on the next one.
class WordWrap {
 public:
  /// What to print for the next piece, of whole UTF-8 characters without control characters but tabs and
  /// newlines, at a terminal of so many columns.
  std::string push(std::string_view piece, int columns);

 private:
  void put(std::string_view character, int width);
  void begin_line();
  void note_beginning(std::string_view character);

  std::string out_;
  std::string word_;  ///< the last word as far as it stands in this line
  int column_ = 0, word_columns_ = 0;
  std::string beginning_;  ///< of the line, without its indent: as much as a fence has
  bool at_beginning_ = true;
  bool in_code_ = false;
  bool wrapped_ = false;  ///< the line was begun here: it needs no space in front
  int most_ = 0;          ///< columns that are used; 0: all
};

/// A model's text on standard output: as it is into a file or a pipe; at a terminal without what could steer
/// it, wrapped at words.
class ModelText {
 public:
  ModelText();
  /// Throws Error when it is lost.
  void print(std::string_view text);

 private:
  bool terminal_, wraps_;
  WordWrap wrap_;
};

/// Whether the terminal obeys escape sequences, by its name.
bool terminal_has_sequences();

/// Columns of the terminal behind a file descriptor; 0: they cannot be told.
int terminal_columns(int fd);

}  // namespace sluice::cli
