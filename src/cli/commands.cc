#include "cli/commands.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/llama_flags.h"
#include "cli/output.h"
#include "cli/usage_text.h"
#include "cli/version.h"

namespace sluice::cli {
namespace {

/// Arguments in the words of the app, the last one first, as CLI11 takes them.
std::vector<std::string> arguments_of(const CLI::App& app, int argc, char** argv) {
  const auto tell = [](const std::string& line) { note("sluice: {}\n", terminal_safe(line)); };
  std::vector<std::string> given(argv + std::min(argc, 1), argv + argc);
  std::vector<std::string> arguments = translate_arguments(app, std::move(given), tell);
  std::ranges::reverse(arguments);
  return arguments;
}

}  // namespace

void add_commands(CLI::App& app) {
  add_run(app);
  add_chat(app);
  add_serve(app);
  add_pull(app);
  add_cache(app);
  add_inspect(app);
  add_logits(app);
  add_compare(app);
  add_perplexity(app);
  add_verify(app);
  add_synth(app);
  add_pack(app);
  add_bench(app);
  add_load(app);
  add_profile(app);
  add_forecast(app);
  add_opbench(app);
  add_draftbench(app);
  add_tune(app);
  add_devices(app);
  add_tokenize(app);
  add_debug(app);
  // An empty name is a variable of a script that nobody set, and does not mean the bundled model.
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    if (CLI::Option* model = command->get_option_no_throw("--model"))
      model->check([](const std::string& name) { return name.empty() ? "the name is empty" : ""; });
  }
}

int run_command_line(int argc, char** argv) {
  CLI::App app{"Sluice runs Mixture-of-Experts language models with latent attention from GGUF files.",
               "sluice"};
  app.set_version_flag("--version", version());
  app.require_subcommand(0, 1);
  app.failure_message([](const CLI::App* all, const CLI::Error& error) {
    return fmt::format("sluice: {}; --help tells more\n", terminal_safe(usage_text(*all, error)));
  });
  add_commands(app);
  try {
    app.parse(arguments_of(app, argc, argv));
    if (app.get_subcommands().empty()) {
      note_text(app.help());
      return 2;
    }
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();  // a command that ran and has its own verdict
  } catch (const CLI::ParseError& error) {
    // CLI11 numbers its errors from 100; here every one is a matter of usage.
    std::ostringstream out, err;
    const int code = app.exit(error, out, err);
    print_text(out.str());
    note_text(err.str());
    return code == 0 ? 0 : 2;
  }
  return 0;
}

}  // namespace sluice::cli
