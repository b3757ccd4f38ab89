#include "cli/reply_printer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "cli/output.h"

namespace sluice::cli {
namespace {

/// Lost messages are nobody's: what matters is standard output.
void print_error(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

bool has_colours() {
  const char* terminal = std::getenv("TERM");
  const char* no_colour = std::getenv("NO_COLOR");
  return terminal != nullptr && std::string_view(terminal) != "dumb" &&
         (no_colour == nullptr || *no_colour == '\0');
}

}  // namespace

ReplyPrinter::ReplyPrinter(Style style)
    : style_(style),
      shows_thinking_(::isatty(STDERR_FILENO) == 1),
      dims_(has_colours()),
      safe_(::isatty(STDOUT_FILENO) == 1) {}

void ReplyPrinter::show(const text::OutputEvent& event, int64_t thinking_tokens) {
  thinking_tokens_ = thinking_tokens;
  if (event.kind == text::OutputEvent::Kind::Reasoning) think(event.text);
  if (event.kind != text::OutputEvent::Kind::Content || event.text.empty()) return;
  end_thinking();
  print_text(safe_ ? terminal_safe(event.text) : event.text);
}

void ReplyPrinter::think(std::string_view text) {
  if (!shows_thinking_ || text.empty()) return;
  if (!thinking_) {
    if (dims_) print_error("\x1b[2m");
    if (style_.fold) print_error("thinking ...");
  }
  thinking_ = true;
  if (!style_.fold) print_error(terminal_safe(text));
}

void ReplyPrinter::end_thinking() {
  if (!thinking_) return;
  thinking_ = false;
  if (style_.fold) {
    print_error(fmt::format("{}thought for {} tokens", dims_ ? "\r\x1b[K" : "\n", thinking_tokens_));
  }
  print_error(dims_ ? "\x1b[0m\n\n" : "\n\n");
}

}  // namespace sluice::cli
