// sluice run: continues a text, or answers it as one message of a conversation. Standard output holds the
// text, everything else goes to standard error.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "cli/chat_session.h"
#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/reply_printer.h"
#include "cli/word_wrap.h"

namespace sluice::cli {
namespace {

constexpr const char* kOpening = "Once upon a time";

struct RunOptions : GenerationOptions {
  std::string prompt, file, system, think;
  bool chat = false;
};

engine::Result continue_text(LoadedModel& model, const RunOptions& options, const std::string& prompt,
                             ModelText& printer) {
  engine::Request request;
  if (model.tokenizer().add_bos()) request.prompt.push_back(model.tokenizer().bos());
  model.tokenizer().append(prompt, true, request.prompt);
  request.max_tokens = options.tokens;
  request.sampling = model.sampling();
  request.stops = options.stops;
  const auto print_it = [&](std::string_view text) {
    printer.print(text);
    return true;
  };
  return model.generator().run(request, print_it, nullptr, prompt_bar());
}

engine::Result answer(LoadedModel& model, const RunOptions& options, const std::string& prompt) {
  ChatSession session(model);
  session.settings.max_tokens = options.tokens;
  session.settings.stops = options.stops;
  session.settings.system = options.system;
  if (!options.think.empty()) session.settings.think = options.think == "on";
  ReplyPrinter printer({});
  const ChatReply reply =
      session.say(prompt, [&](const auto& event, int64_t tokens) { printer.show(event, tokens); });
  printer.finish();
  return reply.result;
}

void run(const CLI::App& command, const RunOptions& options) {
  if (follows(options.ranks, options.rank_model())) return;
  const bool given = command.count("-p") + command.count("-f") > 0;
  std::string prompt = options.prompt;
  if (command.count("-f") > 0) prompt = read_file(options.file);
  if (!given) prompt = piped_input();
  const bool opening = prompt.empty();
  if (opening && options.chat)
    throw UsageError("--chat: there is no message; give one with -p, -f or a pipe");
  if (opening) prompt = kOpening;

  LoadedModel model(command, options);
  ModelText printer;
  if (opening) printer.print(kOpening);  // the tale begins with it
  const engine::Result result =
      options.chat ? answer(model, options, prompt) : continue_text(model, options, prompt, printer);
  print_text("\n");
  if (result.finish == engine::Finish::ContextFull) {
    note("[ the context of {} tokens is full ]\n", model.context());
  }
  print_statistics(result, model.sampling().seed);
}

}  // namespace

void add_run(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Continue a text; without a prompt, tell a tale");
  auto* prompt = command->add_option("-p,--prompt", options->prompt, "text to continue");
  command->add_option("-f,--file", options->file, "file with the text to continue")->excludes(prompt);
  auto* chat =
      command->add_flag("--chat", options->chat, "answer the text as a message, by the chat template");
  command->add_option("--system", options->system, "with --chat: the system message")->needs(chat);
  command->add_option("--think", options->think, "with --chat: on or off; by default the template's choice")
      ->check(CLI::IsMember({"on", "off"}))
      ->needs(chat);
  add_generation_options(*command, *options);
  command->footer(
      "Without -p and -f the text is read from standard input unless that is a terminal; an empty one "
      "becomes\n"
      "\"Once upon a time\", which is then printed as the tale's beginning. Sampling defaults are the model "
      "file's\n"
      "own (general.sampling.*) where it has them. Standard output holds the text only.");
  command->callback([command, options] { run(*command, *options); });
}

}  // namespace sluice::cli
