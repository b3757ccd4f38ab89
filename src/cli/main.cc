// sluice: reads the command line, runs one command, turns exceptions into one line and an exit code.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/llama_flags.h"
#include "cli/output.h"
#include "cli/usage_text.h"
#include "cli/version.h"

namespace {

/// Arguments in the words of the app, the last one first, as CLI11 takes them.
std::vector<std::string> arguments_of(const CLI::App& app, int argc, char** argv) {
  const auto tell = [](const std::string& line) {
    sluice::cli::note("sluice: {}\n", sluice::cli::terminal_safe(line));
  };
  std::vector<std::string> given(argv + std::min(argc, 1), argv + argc);
  std::vector<std::string> arguments = sluice::cli::translate_arguments(app, std::move(given), tell);
  std::ranges::reverse(arguments);
  return arguments;
}

int run(int argc, char** argv) {
  CLI::App app{"Sluice runs Mixture-of-Experts language models with latent attention from GGUF files.",
               "sluice"};
  app.set_version_flag("--version", sluice::cli::version());
  app.require_subcommand(0, 1);
  app.failure_message([](const CLI::App* all, const CLI::Error& error) {
    return fmt::format("sluice: {}; --help tells more\n",
                       sluice::cli::terminal_safe(sluice::cli::usage_text(*all, error)));
  });
  sluice::cli::add_commands(app);
  try {
    app.parse(arguments_of(app, argc, argv));
    if (app.get_subcommands().empty()) {
      sluice::cli::note_text(app.help());
      return 2;
    }
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();  // a command that ran and has its own verdict
  } catch (const CLI::ParseError& error) {
    // CLI11 numbers its errors from 100; here every one is a matter of usage.
    std::ostringstream out, err;
    const int code = app.exit(error, out, err);
    sluice::cli::print_text(out.str());
    sluice::cli::note_text(err.str());
    return code == 0 ? 0 : 2;
  }
  return 0;
}

/// Messages quote what a file says: it must not get to steer the terminal.
void report(const char* message) { sluice::cli::note("sluice: {}\n", sluice::cli::terminal_safe(message)); }

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a failed write, reported where it happens
  sluice::cli::occupy_standard_streams();
  try {
    const int code = run(argc, argv);
    sluice::cli::finish_output();
    return code;
  } catch (const sluice::UsageError& error) {
    report(error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    report("out of memory");
    return 1;
  } catch (const std::exception& error) {
    report(error.what());
    return 1;
  }
}
