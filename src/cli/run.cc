// sluice run: continues a text. Standard output holds the text, everything else goes to standard error.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "cli/assemble.h"
#include "cli/commands.h"
#include "engine/generator.h"

namespace sluice::cli {
namespace {

constexpr const char* kOpening = "Once upon a time";
constexpr int64_t kPrefillRows = 512;

struct Options {
  std::string model, prompt, file, backend = "cpu";
  int64_t tokens = -1, context = 0;
  int threads = 0;
  int64_t seed = -1;
  engine::SamplingParams sampling;
  std::vector<std::string> stops;
};

/// Standard input as a prompt: only when it is there and no terminal.
std::string piped_input() {
  struct stat info {};
  if (::fstat(STDIN_FILENO, &info) != 0 || ::isatty(STDIN_FILENO) == 1) return "";
  return read_file("-");
}

/// Prints to standard output at once; the reader may have gone.
void print_text(std::string_view text) {
  if (text.empty()) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    fail("standard output: {}", std::strerror(errno));
  }
}

/// Sampling as the file recommends it (general.sampling.*), where the command line says nothing.
void take_recommended(const CLI::App& command, const gguf::File& file, engine::SamplingParams& sampling) {
  const auto take = [&](const char* flag, const char* key, auto& field) {
    if (command.count(flag) > 0) return;
    if (const auto value = file.number(std::string("general.sampling.") + key)) {
      // The file's number may be anything; what is out of range is told by validate().
      field = static_cast<std::remove_reference_t<decltype(field)>>(std::clamp(*value, -1e9, 1e9));
    }
  };
  take("--temp", "temp", sampling.temperature);
  take("--top-k", "top_k", sampling.top_k);
  take("--top-p", "top_p", sampling.top_p);
  take("--min-p", "min_p", sampling.min_p);
  take("--repeat-penalty", "penalty_repeat", sampling.repeat_penalty);
  take("--repeat-last-n", "penalty_last_n", sampling.penalty_window);
}

void print_statistics(const engine::Result& result, uint64_t seed) {
  const auto rate = [](int64_t tokens, int64_t ns) {
    return ns > 0 ? static_cast<double>(tokens) * 1e9 / static_cast<double>(ns) : 0.0;
  };
  fmt::print(stderr,
             "[ prompt: {} tokens, {:.1f} tokens/s | generation: {} tokens, {:.1f} tokens/s | seed {} ]\n",
             result.prompt_tokens, rate(result.prompt_tokens, result.prompt_ns), result.generated_tokens,
             rate(result.generated_tokens - 1, result.decode_ns), seed);
}

void run(const CLI::App& command, Options options) {
  const bool given = command.count("-p") + command.count("-f") > 0;
  std::string prompt = options.prompt;
  if (command.count("-f") > 0) prompt = read_file(options.file);
  if (!given) prompt = piped_input();
  const bool opening = prompt.empty();
  if (opening) prompt = kOpening;

  const model::Model model = model::Model::load(model_path_or_bundled(options.model));
  const text::Tokenizer tokenizer = model::load_tokenizer(model.file);
  take_recommended(command, model.file, options.sampling);
  options.sampling.seed = options.seed >= 0 ? static_cast<uint64_t>(options.seed) : std::random_device{}();
  options.sampling.validate();
  if (options.context > model.spec.context) {
    fail("-c {}: the model was made for a context of {}", options.context, model.spec.context);
  }
  const int64_t context = options.context > 0 ? options.context : model.spec.context;

  engine::Request request;
  if (tokenizer.add_bos()) request.prompt.push_back(tokenizer.bos());
  const std::vector<int32_t> ids = tokenizer.encode(prompt, true);
  request.prompt.insert(request.prompt.end(), ids.begin(), ids.end());
  request.max_tokens = options.tokens;
  request.sampling = options.sampling;
  request.stops = options.stops;

  const auto backend = make_backend(options.backend, options.threads);
  const auto executable = backend->compile(
      model.program, model.weights,
      {.max_rows = kPrefillRows, .max_outputs = 1, .cache_pages = engine::KvPool::pages_for(context)});
  engine::Generator generator(*executable, tokenizer, context, kPrefillRows);
  if (opening) print_text(kOpening);  // the tale begins with it
  const engine::Result result = generator.run(request, [](std::string_view text) {
    print_text(text);
    return true;
  });
  print_text("\n");
  if (result.finish == engine::Finish::ContextFull) {
    fmt::print(stderr, "[ the context of {} tokens is full ]\n", context);
  }
  print_statistics(result, options.sampling.seed);
}

void add_sampling(CLI::App& command, Options& options) {
  engine::SamplingParams& s = options.sampling;
  command.add_option("-s,--seed", options.seed, "seed of the sampler; -1: a new one each time")
      ->capture_default_str();
  command.add_option("--temp", s.temperature, "temperature; 0: always the likeliest token")
      ->capture_default_str();
  command.add_option("--top-k", s.top_k, "keep the K likeliest tokens; 0: off")->capture_default_str();
  command.add_option("--top-p", s.top_p, "keep the likeliest tokens that make up P; 1: off")
      ->capture_default_str();
  command
      .add_option("--min-p", s.min_p, "keep tokens of at least P times the likeliest's probability; 0: off")
      ->capture_default_str();
  command.add_option("--repeat-penalty", s.repeat_penalty, "divides the scores of recent tokens; 1: off")
      ->capture_default_str();
  command.add_option("--repeat-last-n", s.penalty_window, "how many last tokens count as recent; -1: all")
      ->capture_default_str();
  command.add_option("--presence-penalty", s.presence_penalty, "subtracted from recent tokens once; 0: off")
      ->capture_default_str();
  command.add_option("--frequency-penalty", s.frequency_penalty, "subtracted for each recent use; 0: off")
      ->capture_default_str();
}

}  // namespace

void add_run(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("run", "Continue a text; without a prompt, tell a tale");
  command->add_option("-m,--model", options->model, "GGUF file; without it the bundled model");
  auto* prompt = command->add_option("-p,--prompt", options->prompt, "text to continue");
  command->add_option("-f,--file", options->file, "file with the text to continue")->excludes(prompt);
  command->add_option("-n,--predict", options->tokens, "tokens to generate; -1: until the end")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str();
  command->add_option("-c,--ctx-size", options->context, "context in tokens; 0: the model's own")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->add_option("-t,--threads", options->threads, "threads; 0: all that are usable")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--stop", options->stops, "text at which to stop; may be given again")
      ->allow_extra_args(false);
  command->add_option("--backend", options->backend, "cpu or ref")->capture_default_str();
  add_sampling(*command, *options);
  command->footer(
      "Without -p and -f the text is read from standard input unless that is a terminal; an empty one "
      "becomes\n"
      "\"Once upon a time\", which is then printed as the tale's beginning. Sampling defaults are the model "
      "file's\n"
      "own (general.sampling.*) where it has them. Standard output holds the text only.");
  command->callback([command, options] { run(*command, *options); });
}

}  // namespace sluice::cli
