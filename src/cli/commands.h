// The table of commands. A command is a file of this folder: a function that adds its subcommand and flags,
// and whose callback runs it. Exit code: 0, or what the exceptions of base/error.h say (main.cc).
#pragma once

#include "cli/cli11.h"

namespace sluice::cli {

/// All of them.
void add_commands(CLI::App& app);

/// Reads the command line and runs the command that it names. Gives the exit code.
int run_command_line(int argc, char** argv);

void add_run(CLI::App& app);
void add_chat(CLI::App& app);
void add_serve(CLI::App& app);
void add_inspect(CLI::App& app);
void add_logits(CLI::App& app);
void add_compare(CLI::App& app);
void add_perplexity(CLI::App& app);
void add_verify(CLI::App& app);
void add_synth(CLI::App& app);
void add_pack(CLI::App& app);
void add_bench(CLI::App& app);
void add_load(CLI::App& app);
void add_profile(CLI::App& app);
void add_forecast(CLI::App& app);
void add_opbench(CLI::App& app);
void add_draftbench(CLI::App& app);
void add_tune(CLI::App& app);
void add_tokenize(CLI::App& app);  // and detokenize
void add_debug(CLI::App& app);
void add_pull(CLI::App& app);  // and list, rm
void add_cache(CLI::App& app);
void add_devices(CLI::App& app);

}  // namespace sluice::cli
