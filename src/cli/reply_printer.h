// Shows an answer while it comes: content on standard output; thinking, dimmed, on standard error when that
// is a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cli/word_wrap.h"
#include "text/output_parser.h"

namespace sluice::cli {

class ReplyPrinter {
 public:
  struct Style {
    bool fold = false;  ///< one line says how long the thinking was, in place of it
  };

  explicit ReplyPrinter(Style style);

  void show(const text::OutputEvent& event, int64_t thinking_tokens);
  /// The answer is over, perhaps within its thinking. The line of the content is not ended.
  void finish() { end_thinking(); }

 private:
  void think(std::string_view text);
  void end_thinking();
  std::string dim(const std::string& piece) const;

  Style style_;
  bool shows_thinking_, dims_;
  ModelText content_;
  WordWrap thought_;
  bool thinking_ = false;
  int64_t thinking_tokens_ = 0;
};

}  // namespace sluice::cli
