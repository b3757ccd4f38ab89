// sluice: reads the command line, runs one command, turns exceptions into one line and an exit code.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstring>
#include <exception>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/version.h"

namespace {

/// llama.cpp has flags of several letters behind one dash, which CLI11 knows behind two only.
std::vector<const char*> with_two_dashes(int argc, char** argv) {
  std::vector<const char*> arguments(argv, argv + argc);
  for (const char*& argument : arguments) {
    for (const char* flag : {"--pg", "--npl", "--ub", "--oe", "--ctk"}) {
      if (std::strcmp(argument, flag + 1) == 0) argument = flag;
    }
  }
  return arguments;
}

int run(int argc, char** argv) {
  CLI::App app{"Sluice runs Mixture-of-Experts language models with latent attention from GGUF files.",
               "sluice"};
  app.set_version_flag("--version", sluice::cli::version());
  app.require_subcommand(0, 1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return fmt::format("sluice: {}; --help tells more\n", error.what());
  });
  sluice::cli::add_run(app);
  sluice::cli::add_chat(app);
  sluice::cli::add_serve(app);
  sluice::cli::add_inspect(app);
  sluice::cli::add_logits(app);
  sluice::cli::add_compare(app);
  sluice::cli::add_perplexity(app);
  sluice::cli::add_synth(app);
  sluice::cli::add_pack(app);
  sluice::cli::add_bench(app);
  sluice::cli::add_load(app);
  sluice::cli::add_profile(app);
  sluice::cli::add_forecast(app);
  sluice::cli::add_opbench(app);
  sluice::cli::add_draftbench(app);
  sluice::cli::add_tune(app);
  sluice::cli::add_tokenize(app);
  sluice::cli::add_debug(app);
  try {
    app.parse(argc, with_two_dashes(argc, argv).data());
    if (app.get_subcommands().empty()) {
      fmt::print(stderr, "{}", app.help());
      return 2;
    }
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();  // a command that ran and has its own verdict
  } catch (const CLI::ParseError& error) {
    // CLI11 numbers its errors from 100; here every one is a matter of usage.
    return app.exit(error) == 0 ? 0 : 2;
  }
  return 0;
}

/// Messages quote what a file says: it must not get to steer the terminal.
void report(const char* message) { fmt::print(stderr, "sluice: {}\n", sluice::cli::terminal_safe(message)); }

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a failed write, reported where it happens
  try {
    return run(argc, argv);
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
