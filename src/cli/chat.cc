// sluice chat: a conversation at a terminal, or one that is piped in line by line. Answers go to standard
// output, everything else to standard error.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "cli/chat_session.h"
#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/line_input.h"
#include "cli/output.h"
#include "cli/repl.h"

namespace sluice::cli {
namespace {

struct ChatOptions : GenerationOptions {
  std::string system, think;
  ReplOptions repl;
};

void chat(const CLI::App& command, const ChatOptions& options) {
  if (follows(options.ranks, options.rank_model())) return;
  LoadedModel model(command, options);
  ChatSession session(model);
  session.settings.max_tokens = options.tokens;
  session.settings.stops = options.stops;
  session.settings.system = options.system;
  if (!options.think.empty()) session.settings.think = options.think == "on";

  const bool typed = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  std::optional<InterruptFlag> interrupt;
  std::unique_ptr<LineInput> input;
  if (typed) {
    interrupt.emplace();
    input = make_terminal_input(default_history_path(), Repl::phrases());
    const auto name = model.file().string("general.name");
    print_text(fmt::format("{}. /help lists the commands, Ctrl-D leaves.\n",
                           gguf::printable(name ? *name : std::string_view(model.file().path()))));
  } else {
    input = make_piped_input();
  }
  Repl(session, *input, options.repl).run();
}

}  // namespace

void add_chat(CLI::App& app) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* command = app.add_subcommand("chat", "Talk with a model");
  command->add_option("--system", options->system, "the system message");
  command->add_option("--think", options->think, "on or off; by default the template's choice")
      ->check(CLI::IsMember({"on", "off"}));
  command->add_flag("--fold", options->repl.fold, "show how long the thinking was in place of it");
  command->add_flag("-v,--verbose", options->repl.verbose, "tokens and speed after each answer");
  add_generation_options(*command, *options);
  command->footer(
      "When standard input or output is no terminal, each line of the input is a message (or a command), "
      "and\n"
      "the answers are printed plainly.");
  command->callback([command, options] { chat(*command, *options); });
}

}  // namespace sluice::cli
