#include "cli/reply_printer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "cli/output.h"

namespace sluice::cli {
namespace {

bool has_colours() {
  const char* no_colour = std::getenv("NO_COLOR");
  return terminal_has_sequences() && (no_colour == nullptr || *no_colour == '\0');
}

}  // namespace

ReplyPrinter::ReplyPrinter(Style style)
    : style_(style), shows_thinking_(::isatty(STDERR_FILENO) == 1), dims_(has_colours()) {}

void ReplyPrinter::show(const text::OutputEvent& event, int64_t thinking_tokens) {
  thinking_tokens_ = thinking_tokens;
  if (event.kind == text::OutputEvent::Kind::Reasoning) think(event.text);
  if (event.kind != text::OutputEvent::Kind::Content || event.text.empty()) return;
  end_thinking();
  content_.print(event.text);
}

void ReplyPrinter::think(std::string_view text) {
  if (!shows_thinking_ || text.empty()) return;
  if (!std::exchange(thinking_, true) && style_.fold) note_text(dim("thinking ..."));
  if (style_.fold) return;
  const int columns = terminal_has_sequences() ? terminal_columns(STDERR_FILENO) : 0;
  note_text(dim(thought_.push(terminal_safe(text), columns)));
}

// A piece by itself: a signal may end the program behind any, and the terminal is others' then.
std::string ReplyPrinter::dim(const std::string& piece) const {
  return dims_ && !piece.empty() ? "\x1b[2m" + piece + "\x1b[0m" : piece;
}

void ReplyPrinter::end_thinking() {
  if (!thinking_) return;
  thinking_ = false;
  if (style_.fold) {
    note_text(dims_ ? "\r\x1b[K" : "\n");
    note_text(dim(fmt::format("thought for {} tokens", thinking_tokens_)));
  }
  note_text("\n\n");
}

}  // namespace sluice::cli
