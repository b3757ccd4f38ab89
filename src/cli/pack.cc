// sluice pack: a model's weights packed once into a file that later starts only map.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/loading.h"
#include "cli/output.h"

namespace sluice::cli {
namespace {

struct PackOptions {
  std::string file, out;
  int threads = 0;
  bool verify = false;
};

void pack(const PackOptions& options) {
  const int64_t began = now_ns();
  if (options.verify) {
    verify_pack(options.file, options.threads);
    return print_text(fmt::format("{}: is as it was packed\n", options.file));
  }
  if (options.out.empty()) throw UsageError("OUT: expected the name of the packed file to write");
  const bool written = pack_model(options.file, options.out, options.threads, loading_bar());
  const auto bytes = static_cast<double>(std::filesystem::file_size(options.out));
  if (!written) return print_text(fmt::format("{}: is up to date\n", options.out));
  print_text(fmt::format("{}: {} in {:.1f} s\n", options.out, short_count(bytes, "B"),
                         1e-9 * static_cast<double>(now_ns() - began)));
}

}  // namespace

void add_pack(CLI::App& app) {
  auto options = std::make_shared<PackOptions>();
  CLI::App* command = app.add_subcommand(
      "pack", "Pack a model's weights into a file that the backend cpu maps and runs at once");
  command->add_option("FILE", options->file, "GGUF file; with --verify a packed one")->required();
  auto* out = command->add_option("OUT", options->out, "the packed file to write; replaced when complete");
  command->add_flag("--verify", options->verify, "read a packed file and compare it with its checksums")
      ->excludes(out);
  command->add_option("-t,--threads", options->threads, "threads; 0: all that are usable")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->footer(
      "run, chat, serve, bench, profile and load take OUT for a model (-m OUT). It is as large as FILE, "
      "which it "
      "does not\n"
      "need any more; processes that run it share its pages. A file of another version of sluice is refused: "
      "pack\n"
      "again. What is no packed weight is checked whenever the file is opened, the rest by --verify: after a "
      "copy, say.");
  command->callback([options] { pack(*options); });
}

}  // namespace sluice::cli
