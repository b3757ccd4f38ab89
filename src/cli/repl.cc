#include "cli/repl.h"

#include <fmt/format.h>

#include <cstdio>

#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/reply_printer.h"

namespace sluice::cli {
namespace {

constexpr std::string_view kQuotes = "\"\"\"";
constexpr std::string_view kSetSystem = "/set system ";

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\n") == std::string_view::npos; }

}  // namespace

void Repl::tell(const std::string& problem) {
  note("sluice: {}\n", terminal_safe(problem));
  ++problems_;
}

// Reads on until the closing quotes; `begin` is where the text between them begins. False: it never closed.
bool Repl::read_quoted(std::string& text, size_t begin) {
  std::string part = text.substr(begin);
  text.erase(begin);
  for (bool first = true;; first = false) {
    const size_t end = part.rfind(kQuotes);
    const bool closes =
        end != std::string::npos && is_blank(std::string_view(part).substr(end + kQuotes.size()));
    if (closes) part.erase(end);
    // A line of quotes alone is no line of the text.
    if (!closes || !part.empty()) text += (first || text.size() == begin ? "" : "\n") + part;
    if (closes) return true;
    switch (input_.read("... ", part)) {
      case LineInput::Status::Line: break;
      case LineInput::Status::Interrupted: return false;
      case LineInput::Status::End:
        tell("the text in \"\"\" was not closed");
        over_ = true;
        return false;
    }
  }
}

Repl::Read Repl::read(std::string& text) {
  switch (input_.read(">>> ", text)) {
    case LineInput::Status::End: return Read::End;
    case LineInput::Status::Interrupted:
      if (++interrupts_ == 2) print_text("Ctrl-D or /bye leaves.\n");
      return Read::Nothing;
    case LineInput::Status::Line: break;
  }
  interrupts_ = 0;
  if (is_blank(text)) return Read::Nothing;
  const std::string_view line = text;
  if (line.starts_with(kQuotes)) {
    text.erase(0, kQuotes.size());
    return read_quoted(text, 0) && !is_blank(text) ? Read::Message : Read::Nothing;
  }
  if (line.starts_with(kSetSystem) && line.substr(kSetSystem.size()).starts_with(kQuotes)) {
    text.erase(kSetSystem.size(), kQuotes.size());
    return read_quoted(text, kSetSystem.size()) ? Read::Command : Read::Nothing;
  }
  // Several lines at once were pasted: a path or a comment in front is no command.
  return line.starts_with('/') && line.find('\n') == std::string_view::npos ? Read::Command : Read::Message;
}

void Repl::run() {
  std::string text;
  while (!over_) {
    const Read what = read(text);
    if (what == Read::End) break;
    if (what == Read::Command) run_command(text);
    if (what == Read::Message) say(text);
  }
  if (!input_.is_terminal() && problems_ > 0) {
    fail("{} problem{}, told above", problems_, problems_ == 1 ? "" : "s");
  }
}

void Repl::run_command(std::string_view line) {
  const size_t end = std::min(line.find_first_of(" \t"), line.size());
  const std::string_view name = line.substr(0, end);
  std::string_view arguments = line.substr(end);
  arguments.remove_prefix(std::min(arguments.find_first_not_of(" \t"), arguments.size()));
  arguments = arguments.substr(0, arguments.find_last_not_of(" \t\n") + 1);
  for (const Command& command : commands()) {
    if (name != command.name) continue;
    try {
      (this->*command.run)(arguments);
    } catch (const Error& error) {
      tell(error.what());
    }
    return;
  }
  tell(fmt::format("no command {}; /help lists them", gguf::printable(name)));
}

void Repl::say(const std::string& text) {
  try {
    reply(&text);
  } catch (const ConversationTooLong& error) {
    tell(fmt::format("{}; the message is left out, /clear begins a new conversation", error.what()));
  } catch (const text::jinja::TemplateError& error) {
    tell(fmt::format("chat template: {}", error.what()));
  }
}

// To a new message, or anew to the last one.
void Repl::reply(const std::string* text) {
  ReplyPrinter printer({.fold = options_.fold});
  const auto show = [&](const text::OutputEvent& event, int64_t tokens) { printer.show(event, tokens); };
  const std::atomic<bool>* cancel = nullptr;
  if (input_.is_terminal()) {
    InterruptFlag::raised() = false;
    cancel = &InterruptFlag::raised();
  }
  const uint64_t seed = session_.next_seed();
  const ChatReply answer =
      text != nullptr ? session_.say(*text, show, cancel) : session_.say_again(show, cancel);
  printer.finish();
  print_text("\n");
  if (answer.result.finish == engine::Finish::ContextFull) {
    note("[ the context of {} tokens is full; /clear begins a new conversation ]\n",
         session_.model().context());
  }
  if (options_.verbose) print_statistics(answer.result, seed);
}

}  // namespace sluice::cli
