#include "cli/commands.h"

namespace sluice::cli {

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

}  // namespace sluice::cli
