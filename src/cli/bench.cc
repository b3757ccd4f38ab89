// sluice bench: tokens a second as llama-bench measures and prints them, beside what the hardware could do.
#include <fmt/chrono.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <map>

#include "base/clock.h"
#include "base/cpu_info.h"
#include "base/error.h"
#include "cli/assemble.h"
#include "cli/bench_cost.h"
#include "cli/bench_record.h"
#include "cli/checked_options.h"
#include "cli/commands.h"
#include "cli/hub_model.h"
#include "cli/loading.h"
#include "cli/measured_steps.h"
#include "cli/number_list.h"
#include "cli/output.h"
#include "cli/ranks.h"
#include "model/model.h"
#include "profile/statistics.h"

namespace sluice::cli {
namespace {

/// A record whose rows selected fewer different experts than this share of the uniform expectation measures a
/// collapsed routing, which reads less than real text would.
constexpr double kLeastExperts = 0.9;

struct BenchOptions {
  std::vector<std::string> models, pairs;
  std::string prompts = "512", gens = "128", depths = "0", threads = "0", batches = "2048", ubatches = "512",
              parallels = "1", caches = "f16", backend = "cpu", format = "md", error_format = "none";
  int repetitions = 5, delay_s = 0, sms = 0;
  uint64_t seed = 1;
  int64_t sweep = 0;
  bool peaks = false, no_warmup = false, progress = false, no_repack = false;
  GpuShare gpu;
  RankOptions ranks;
  double link_limit = 0;  // bytes a second
};

/// The type with most bytes, after the architecture and the number of parameters: "deepseek2 29.94 B Q4_0".
BenchModel describe(const model::Model& model) {
  BenchModel result{model.file.path(), "", 0, 0};
  std::map<std::string, int64_t> bytes;
  for (const gguf::Tensor& tensor : model.file.tensors()) {
    result.size_bytes += static_cast<int64_t>(tensor.bytes.size());
    result.parameters += tensor.count();
    bytes[quant::type_info(tensor.type).name] += static_cast<int64_t>(tensor.bytes.size());
  }
  const auto most = std::max_element(bytes.begin(), bytes.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool billions = result.parameters >= 1'000'000'000;
  result.type = fmt::format("{} {:.1f}{} {}", gguf::printable(model.spec.architecture, 32),
                            static_cast<double>(result.parameters) * (billions ? 1e-9 : 1e-6),
                            billions ? "B" : "M", most->first);
  return result;
}

std::vector<BenchTest> tests_of(const BenchOptions& options) {
  const auto depths = number_list("-d", options.depths, 0);
  const auto parallels = number_list("-npl", options.parallels, 1);
  std::vector<BenchTest> tests;
  for (const int64_t depth : depths) {
    for (const int64_t prompt : number_list("-p", options.prompts, 0)) {
      if (prompt > 0) tests.push_back({.prompt = prompt, .depth = depth});
    }
    for (const int64_t gen : number_list("-n", options.gens, 0)) {
      for (const int64_t parallel : parallels) {
        if (gen > 0)
          tests.push_back({.gen = gen, .depth = depth, .parallel = static_cast<int32_t>(parallel)});
      }
    }
    for (const std::string& pair : options.pairs) {
      const auto both = number_list("-pg", pair, 1);
      if (both.size() != 2) throw UsageError("-pg " + pair + ": expected PROMPT,GEN");
      tests.push_back({.prompt = both[0], .gen = both[1], .depth = depth});
    }
  }
  for (const BenchTest& test : tests) {
    if (test.parallel > 1024) throw UsageError(fmt::format("-npl {}: 1024 at most", test.parallel));
  }
  return tests;
}

int64_t longest(const std::vector<BenchTest>& tests) {
  int64_t longest = 1;
  for (const BenchTest& test : tests) longest = std::max(longest, test.depth + test.prompt + test.gen);
  return longest;
}

int32_t most_sequences(const std::vector<BenchTest>& tests) {
  int32_t most = 1;
  for (const BenchTest& test : tests) most = std::max(most, test.parallel);
  return most;
}

/// Rows of a step at most, of all pairs of -b and -ub.
int64_t most_rows(const BenchOptions& options, const std::vector<BenchTest>& tests) {
  const auto most = [](const std::vector<int64_t>& list) { return *std::ranges::max_element(list); };
  const int64_t rows =
      std::min(most(number_list("-b", options.batches, 1)), most(number_list("-ub", options.ubatches, 1)));
  return std::max<int64_t>(rows, most_sequences(tests));
}

void check_context(const model::Model& model, int64_t tokens) {
  if (tokens > model.spec.context) {
    fail("{}: its context is {} tokens, and {} are asked for", model.file.path(), model.spec.context, tokens);
  }
}

/// What one repetition took.
struct Repetition {
  int64_t prompt_ns = 0, gen_ns = 0;
  profile::ExpertCount experts;  // of steps that have several rows: prompts', on average, or the last one's
};

Repetition repeat(MeasuredSteps& steps, program::Executable& executable, const BenchTest& test) {
  Repetition result;
  int counted = 0;
  const auto count = [&](int64_t rows) {
    if (rows == 1) return;  // as many as a row uses
    const profile::ExpertCount experts = profile::count_experts(executable, rows);
    ++counted;
    result.experts.distinct += (experts.distinct - result.experts.distinct) / counted;
    result.experts.uniform += (experts.uniform - result.experts.uniform) / counted;
  };
  steps.fill(test.depth, test.parallel);
  for (int64_t done = 0; done < test.prompt; done += steps.max_rows()) {
    const int64_t rows = std::min(steps.max_rows(), test.prompt - done);
    result.prompt_ns += steps.prompt_step(test.depth + done, rows);
    if (test.gen == 0 && rows == std::min(steps.max_rows(), test.prompt)) count(rows);
  }
  if (test.gen > 0) {
    result.gen_ns = steps.decode_steps(test.depth + test.prompt, test.parallel, test.gen);
    count(test.parallel);  // of the last step
  }
  return result;
}

/// Reads memory before and after what is measured: its peak is the better of the two, where nothing is read
/// between steps (ReadTurns).
class Bandwidth {
 public:
  explicit Bandwidth(program::Backend& backend)
      : shared(measured_peaks(backend)), backend_(backend), last_(backend.peaks().bytes_per_second) {
    print("before");
    if (!shared) return;
    note("sluice: read bandwidth of {} {:.1f} GB/s, of {} {:.1f} GB/s; from host to device {:.1f} GB/s\n",
         backend.places()[0]->name(), 1e-9 * shared->gpu.bytes_per_second, backend.places()[1]->name(),
         1e-9 * shared->cpu.bytes_per_second, 1e-9 * shared->link_bytes_per_second);
  }
  /// Of a GPU and a CPU that share a model.
  const std::optional<SharedPeaks> shared;

  /// Bytes a second around the time since the last call.
  double around() {
    const double before = last_;
    last_ = backend_.measure_read_bandwidth();
    return std::max(before, last_);
  }
  void print(const char* when) const {
    if (last_ > 0) note("sluice: read bandwidth {}: {:.1f} GB/s\n", when, 1e-9 * last_);
  }

 private:
  program::Backend& backend_;
  double last_;
};

void show(const BenchOptions& options, const std::string& text) {
  if (options.progress || ::isatty(STDERR_FILENO) != 0) note("sluice: bench: {}\n", text);
}

std::string utc_now() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

/// The flags' printers, standard output's first.
class Output {
 public:
  Output(const BenchOptions& options, size_t longest_test) {
    printers_.push_back(make_bench_printer("-o", options.format, stdout, longest_test));
    if (options.error_format != "none") {
      printers_.push_back(make_bench_printer("-oe", options.error_format, stderr, longest_test));
    }
    for (const auto& printer : printers_) printer->begin();
  }
  void add(const BenchRecord& record) {
    for (const auto& printer : printers_) printer->add(record);
  }
  void end() {
    for (const auto& printer : printers_) printer->end();
  }

 private:
  std::vector<std::unique_ptr<BenchPrinter>> printers_;
};

/// One model on one backend, ready to be measured.
struct Setup {
  const model::Model& model;
  program::Backend& backend;
  BenchRecord record;  // what all its records have in common
  std::unique_ptr<program::Executable> executable;
  std::unique_ptr<MeasuredSteps> steps;
};

/// Compiles for steps of min(batch, ubatch) rows. load_began: when reading the model's file began.
Setup set_up(const BenchOptions& options, const model::Model& model, program::Backend& backend, int threads,
             int64_t batch, int64_t ubatch, int64_t context, int32_t sequences, int64_t load_ns) {
  Setup setup{model, backend, {}, nullptr, nullptr};
  const int64_t rows = std::max<int64_t>(std::min(batch, ubatch), sequences);
  const int64_t began = now_ns();
  setup.executable = backend.compile(model.program, model.weights,
                                     {.max_rows = rows,
                                      .max_outputs = sequences,
                                      .cache_pages = MeasuredSteps::pages(sequences, context),
                                      .state_slots = MeasuredSteps::state_slots(sequences),
                                      .stream_bytes_per_second = options.link_limit},
                                     loading_bar());
  if (const int64_t from = setup.executable->facts().stream_rows; from > 0)
    note("sluice: experts of the CPU's memory come to the GPU in steps of {} rows and more\n", from);
  setup.steps = std::make_unique<MeasuredSteps>(*setup.executable, rows, sequences, context, options.seed);
  BenchRecord& record = setup.record;
  record.model = describe(model);
  record.backend = backend.name();
  record.device = backend.device();
  record.threads = threads;
  record.n_batch = batch;
  record.n_ubatch = ubatch;
  record.load_ns = static_cast<double>(load_ns + now_ns() - began);
  return setup;
}

/// The test's record; false in the pair when its routing had collapsed.
std::pair<BenchRecord, bool> measure(const BenchOptions& options, Setup& setup, const BenchTest& test,
                                     Bandwidth& bandwidth) {
  BenchRecord record = setup.record;
  record.test = test;
  record.time = utc_now();
  MeasuredSteps& steps = *setup.steps;
  show(options, test.name());
  steps.fill(test.depth, test.parallel);
  if (!options.no_warmup) {
    // The whole prompt: a backend may prepare for each size of step when it comes first.
    if (test.prompt > 0) steps.prompt(test.depth, test.prompt);
    if (test.gen > 0) steps.decode_step(test.depth + test.prompt, test.parallel);
  }
  const int64_t peak_before = peak_memory_bytes();
  ReadTurns turns(setup.backend, step_bytes(setup.executable->program(), test, steps.max_rows()));
  reset_peak_memory();
  steps.read_between(&turns);
  const int64_t exchanged_before = rank_exchange_ns();
  const ExpertHits hits(*setup.executable);
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    show(options, fmt::format("{}: repetition {} of {}", test.name(), repetition + 1, options.repetitions));
    const Repetition result = repeat(steps, *setup.executable, test);
    record.samples_ns.push_back(static_cast<double>(result.prompt_ns + result.gen_ns));
    record.first_token_ns += static_cast<double>(result.prompt_ns) / options.repetitions;
    record.experts = result.experts;
  }
  record.exchange_ns = static_cast<double>(rank_exchange_ns() - exchanged_before);
  record.cost = cost_of(setup.executable->program(), test, steps.max_rows(), record.experts);
  steps.read_between(nullptr);
  record.peak_memory_bytes = std::max(peak_before, peak_memory_bytes() - turns.memory_bytes());
  record.peaks = setup.backend.peaks();
  record.around_bytes_per_second = bandwidth.around();
  record.peaks.bytes_per_second =
      turns.bytes_per_second() > 0 ? turns.bytes_per_second() : record.around_bytes_per_second;
  record.limit_seconds = bandwidth.shared
                             ? shared_seconds(*setup.executable, setup.model.program, test, steps.max_rows(),
                                              record.experts, *bandwidth.shared, hits.use())
                             : record.peaks.limit_seconds(record.cost);
  reset_peak_memory();  // what measuring the bandwidth took is none of the model's
  note("sluice: {}: {}\n", record.test.name(), record.marks());
  if (const program::ExpertUse use = hits.use(); use.selected > 0)
    note("sluice: {}: {}\n", test.name(), hits_text(use));
  if (record.experts.uniform > 0) {
    note("sluice: {}: {:.1f} different experts a layer; uniform selection would give {:.1f}\n", test.name(),
         record.experts.distinct, record.experts.uniform);
  }
  // A prompt's are shown; which tokens stand in it is the user's business as much as the model's.
  if (test.parallel == 1 || record.experts.distinct >= kLeastExperts * record.experts.uniform)
    return {record, true};
  note(
      "sluice: {}: refused: its rows selected {:.1f} different experts a layer, and {:.1f} are to be "
      "expected of {} rows: such a routing reads less than a real one\n",
      test.name(), record.experts.distinct, record.experts.uniform, test.parallel);
  return {record, false};
}

/// A line for every prompt step of a context that grows to options.sweep tokens, as ik_llama.cpp's
/// llama-sweep-bench prints it: after each, a quarter of its tokens are generated (and overwritten again).
void sweep(const BenchOptions& options, Setup& setup) {
  MeasuredSteps& steps = *setup.steps;
  const int64_t pp = std::min(steps.max_rows(), options.sweep), tg = std::max<int64_t>(pp / 4, 1);
  if (!options.no_warmup) steps.prompt(0, pp);
  print("| {:>6} | {:>6} | {:>7} | {:>8} | {:>9} | {:>8} | {:>9} |\n", "PP", "TG", "N_KV", "T_PP s",
        "S_PP t/s", "T_TG s", "S_TG t/s");
  print("| {0:->5}: | {0:->5}: | {0:->6}: | {0:->7}: | {0:->8}: | {0:->7}: | {0:->8}: |\n", "");
  for (int64_t depth = 0; depth + pp <= options.sweep; depth += pp) {
    const int64_t gen_ns = steps.decode_steps(depth, 1, tg);
    const double prompt_s = 1e-9 * static_cast<double>(steps.prompt(depth, pp));
    const double gen_s = 1e-9 * static_cast<double>(gen_ns);
    print("| {:>6} | {:>6} | {:>7} | {:>8.3f} | {:>9.2f} | {:>8.3f} | {:>9.2f} |\n", pp, tg, depth, prompt_s,
          static_cast<double>(pp) / prompt_s, gen_s, static_cast<double>(tg) / gen_s);
  }
}

void print_peaks(program::Backend& backend, int threads) {
  const program::Peaks& peaks = backend.peaks();
  print("peaks of {}, backend {}, {} thread{}\n\n", cpu_name(), backend.name(), threads,
        threads == 1 ? "" : "s");
  print("| {:<18} | {:>12} | {:<34} |\n| {:-<18} | {:->11}: | {:-<34} |\n", "what", "rate", "how", "", "",
        "");
  print("| {:<18} | {:>12} | {:<34} |\n", "read", fmt::format("{:.1f} GB/s", 1e-9 * peaks.bytes_per_second),
        peaks.read_how);
  for (const program::Peaks::Rate& rate : peaks.rates) {
    print("| {:<18} | {:>12} | {:<34} |\n", rate.name, fmt::format("{:.1f} Gop/s", 1e-9 * rate.per_second),
          "in registers, 2 ops a multiply-add");
  }
  print("| {:<18} | {:>12} | {:<34} |\n", "read again",
        fmt::format("{:.1f} GB/s", 1e-9 * backend.measure_read_bandwidth()), "the same loop, at the end");
}

/// How many a backend of these has (threads_for).
int threads_or_all(int64_t threads) {
  return threads > 0 ? std::min(static_cast<int>(threads), usable_threads()) : usable_threads();
}

/// All tests of one model with some threads and a type of cache; false when one was refused.
bool bench_model(const BenchOptions& options, const std::string& path, int64_t threads, quant::Type cache,
                 std::vector<BenchTest> tests, Output& output) {
  bool sound = true;
  for (BenchTest& test : tests) test.cache = cache;
  const int64_t began = now_ns();
  const OpenedModel model = open_model(path, cache);
  const int64_t load_ns = now_ns() - began, context = std::max(longest(tests), options.sweep);
  check_context(model, context);
  const auto backend = make_backend(
      options.backend, static_cast<int>(threads), {!options.no_repack, model.packed}, model,
      {options.gpu, context, most_sequences(tests), most_rows(options, tests), false}, options.ranks);
  Bandwidth bandwidth(*backend);
  reset_peak_memory();
  for (const int64_t batch : number_list("-b", options.batches, 1)) {
    for (const int64_t ubatch : number_list("-ub", options.ubatches, 1)) {
      const bool sweeping = options.sweep > 0;
      Setup setup = set_up(
          options, model, *backend, threads_or_all(threads), batch, rows_with_room(*backend, ubatch),
          sweeping ? options.sweep + ubatch : longest(tests), sweeping ? 1 : most_sequences(tests), load_ns);
      if (sweeping) {
        sweep(options, setup);
        continue;
      }
      for (const BenchTest& test : tests) {
        if (options.delay_s > 0) ::sleep(static_cast<unsigned>(options.delay_s));
        const auto [record, usable] = measure(options, setup, test, bandwidth);
        if (usable) output.add(record);
        sound = sound && usable;
      }
    }
  }
  bandwidth.print("after");
  return sound;
}

/// "f16,q8_0".
std::vector<quant::Type> cache_types(const std::string& names) {
  std::vector<quant::Type> types;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    types.push_back(cache_type_of(names.substr(begin, end - begin)));
    begin = end + 1;
  }
  return types;
}

size_t longest_name(std::vector<BenchTest> tests, const std::vector<quant::Type>& caches) {
  size_t longest = 0;
  for (BenchTest& test : tests) {
    for (const quant::Type cache : caches) {
      test.cache = cache;
      longest = std::max(longest, test.name().size());
    }
  }
  return longest;
}

void bench(const BenchOptions& options) {
  hold_to_sms(options.backend, options.sms, options.ranks);
  if (options.peaks) {
    for (const int64_t threads : number_list("-t", options.threads, 0)) {
      print_peaks(*make_backend(options.backend, static_cast<int>(threads)), threads_or_all(threads));
    }
    return;
  }
  const std::vector<BenchTest> tests = tests_of(options);
  const std::vector<std::string> models =
      options.models.empty() ? std::vector<std::string>{bundled_model_path()} : options.models;
  bool sound = true;
  if (options.sweep > 0) {
    if (options.format != "md") throw UsageError("--sweep prints its own table: leave -o away");
  }
  const std::vector<quant::Type> caches = cache_types(options.caches);
  const std::vector<int64_t> thread_counts = number_list("-t", options.threads, 0);
  if (options.ranks.several() && models.size() * caches.size() * thread_counts.size() > 1)
    throw UsageError(std::string(options.ranks.flag()) + ": takes one -m, one -t and one type of cache");
  if (follows(options.ranks, {models.front(), options.backend, static_cast<int>(thread_counts.front()),
                              options.no_repack, caches.front()}))
    return;
  Output output(options, longest_name(tests, caches));
  for (const std::string& model : models) {
    const std::string path = local_path(model);
    for (const int64_t threads : thread_counts) {
      for (const quant::Type cache : caches)
        sound = bench_model(options, path, threads, cache, tests, output) && sound;
    }
  }
  if (options.sweep == 0) output.end();
  if (!sound) fail("records were refused: see above");
}

}  // namespace

void add_bench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand("bench",
                                         "Measure tokens a second: llama-bench's flags, test names and "
                                         "fields, and the share of the hardware's limit");
  command->footer(
      "Numbers may be lists and ranges (1,2,4 or 512-2048+512 or 1-8*2), and flags be given again. Prompts\n"
      "and contexts are random tokens (--seed), a context is computed before the clock starts. MB/token are\n"
      "the bytes that the ops must read; the limit is reading them at the bandwidth measured between steps\n"
      "(of small models and on GPUs around the test), or computing at the best measured rate; what a large\n"
      "cache holds, as all of a small model, may exceed it. Time to the first token, load time and memory\n"
      "are told on standard error, and in csv, json and sql.");
  add_models_option(*command, options->models, "GGUF file, may be given again; without it the bundled model");
  command->add_option("-p,--n-prompt", options->prompts, "tokens of a prompt (pp)")
      ->join(',')
      ->capture_default_str();
  command->add_option("-n,--n-gen", options->gens, "tokens to generate (tg)")
      ->join(',')
      ->capture_default_str();
  command->add_option("--pg", options->pairs, "PROMPT,GEN: both in one test; may be given again")
      ->allow_extra_args(false);
  command->add_option("-d,--n-depth", options->depths, "tokens of context before a test")
      ->join(',')
      ->capture_default_str();
  command->add_option("-r,--repetitions", options->repetitions, "repetitions of a test")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command->add_option("-t,--threads", options->threads, "threads; 0: all that are usable")
      ->join(',')
      ->capture_default_str();
  command->add_option("-b,--batch-size", options->batches, "rows that are handed over at once")
      ->join(',')
      ->capture_default_str();
  command->add_option("--ub,--ubatch-size", options->ubatches, "rows of a step at most")
      ->join(',')
      ->capture_default_str();
  command->add_option("--npl", options->parallels, "sequences that decode together in tg tests")
      ->join(',')
      ->capture_default_str();
  command->add_option("--ctk,--cache-type,--cache-type-k", options->caches, "numbers of the cache: f16, q8_0")
      ->join(',')
      ->capture_default_str();
  command->add_option("-o,--output", options->format, "md, csv, json, jsonl or sql, on standard output")
      ->capture_default_str();
  command->add_option("--oe,--output-err", options->error_format, "the same on standard error, or none")
      ->capture_default_str();
  command
      ->add_option("--sweep", options->sweep,
                   "instead: prompt and generation speed while a context grows to so many tokens")
      ->check(CLI::Range(1, 1 << 30));
  command->add_flag("--peaks", options->peaks,
                    "instead: the machine's read bandwidth and arithmetic rates, all shares' measure");
  command->add_option("--seed", options->seed, "seed of the random tokens")->capture_default_str();
  command->add_option("--delay", options->delay_s, "seconds to wait before each test")
      ->check(CLI::Range(0, 3600))
      ->capture_default_str();
  command->add_flag("--no-warmup", options->no_warmup, "measure the first run too");
  command->add_flag("--progress", options->progress, "tell of each repetition, not only on a terminal");
  command->add_option("--backend", options->backend, kBackendHelp)->capture_default_str();
  add_sms_option(*command, options->sms);
  add_loading_option(*command, options->no_repack);
  add_gpu_memory_option(*command, options->gpu);
  add_rank_options(*command, options->ranks);
  command
      ->add_option_function<double>(
          "--link-limit", [options](double gigabytes) { options->link_limit = 1e9 * gigabytes; },
          "GB/s that experts come to the GPU with at most, as though the link were slower")
      ->check(number_range(0.001, 1e6));
  command->callback([options] { bench(*options); });
}

}  // namespace sluice::cli
