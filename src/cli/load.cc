// sluice load: many answers at once through the serving engine, alone and while a long prompt is read beside
// them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "cli/assemble.h"
#include "cli/checked_options.h"
#include "cli/commands.h"
#include "cli/loading.h"
#include "cli/memory_view.h"
#include "cli/number_list.h"
#include "cli/output.h"
#include "cli/serving_model.h"
#include "engine/engine.h"
#include "engine/kv_pool.h"
#include "engine/state_pool.h"
#include "model/model.h"

namespace sluice::cli {
namespace {

struct LoadOptions {
  std::string model, backend = "auto", streams = "1,8,32";
  int threads = 0;
  int64_t prompt = 16384, depth = 128, rows = 0, tokens = 64;
  double max_itl_ms = 0;
  bool batch_invariant = false, force = false, no_repack = false;
  quant::Type cache = quant::Type::F16;
  GpuShare gpu;
};

/// Notes when tokens came. Times may be read once the request has ended, the counters at any time.
class Clock : public engine::Listener {
 public:
  explicit Clock(int64_t most) { times_ns.reserve(static_cast<size_t>(most)); }
  void on_token(const engine::TokenEvent& event) override {
    times_ns.push_back(event.time_ns);
    tokens = event.index + 1;
  }
  void on_end(engine::RequestId, std::string_view, const engine::Result& how) override {
    result = how;
    ended = true;
  }
  std::vector<int64_t> times_ns;
  engine::Result result;
  std::atomic<int64_t> tokens = 0;
  std::atomic<bool> ended = false;
};

/// Milliseconds between tokens of answers, of those that came between two times.
struct Gaps {
  std::vector<double> ms;
  double percentile(double share) const {
    return ms.empty()
               ? 0
               : ms[std::min(ms.size() - 1, static_cast<size_t>(share * static_cast<double>(ms.size())))];
  }
};

Gaps gaps_between(const std::vector<std::shared_ptr<Clock>>& clocks, int64_t begin_ns, int64_t end_ns) {
  Gaps gaps;
  for (const auto& clock : clocks) {
    const auto& times = clock->times_ns;
    for (size_t i = 1; i < times.size(); ++i)
      if (times[i] > begin_ns && times[i] <= end_ns)
        gaps.ms.push_back(static_cast<double>(times[i] - times[i - 1]) * 1e-6);
  }
  std::sort(gaps.ms.begin(), gaps.ms.end());
  return gaps;
}

class Load {
 public:
  explicit Load(const LoadOptions& options)
      : options_(options),
        streams_(number_list("--streams", options.streams, 1)),
        model_(open_model(model_path_or_bundled(options.model), options.cache)),
        tokenizer_(model::load_tokenizer(model_.file)),
        backend_(make_backend(options.backend, options.threads, {!options.no_repack, model_.packed}, model_,
                              {options.gpu, std::max(options.prompt, options.depth) + kAnswer,
                               *std::ranges::max_element(streams_) + 1, options.rows})) {
    for (const int64_t streams : streams_)
      if (streams > 1000) throw UsageError(fmt::format("--streams {}: 1000 at most", streams));
    const int64_t most = *std::ranges::max_element(streams_);
    // A prompt leaves room for a token.
    engine_.context = std::min(model_.spec.context, std::max(options.prompt, options.depth) + kAnswer);
    prompt_ = std::min(options.prompt, engine_.context - 2);
    depth_ = std::min(options.depth, engine_.context / 2);
    answer_ = std::min<int64_t>(kAnswer, engine_.context - depth_);
    engine_.max_sequences = static_cast<int32_t>(most + 1);
    const PromptRows rows =
        serving_rows(model_.spec, *backend_, options.rows, most + 1).within(engine_.context);
    engine_.max_rows = rows.most;
    engine_.shallow_rows = rows.shallow;
    engine_.long_step_seconds = serving_step_seconds(options.rows);
    engine_.max_itl_ms = serving_itl_ms(*backend_, options.max_itl_ms);
    engine_.max_waiting = most + 1;
    const int64_t tokens = std::max(engine_.context, most * (depth_ + answer_) + engine_.context);
    program::CompileOptions compile{engine_.max_rows, engine_.max_sequences, 0};
    compile.batch_invariant = options.batch_invariant;
    compile.aside_rows = rows.aside;
    compile.state_slots = engine_.state_slots = engine::StatePool::wanted_slots(engine_.max_sequences);
    engine_.pages = engine::KvPool::pages_for(tokens) + most;
    const auto plan =
        engine::plan_load(*backend_, model_.program, compile, engine_.pages * program::kPageRows,
                          engine_.pages * program::kPageRows, backend_->available_bytes());
    if (!plan.fits() && !options.force) fail("{}: {}", model_.file.path(), too_little_memory(plan));
    compile.cache_pages = engine_.pages;
    executable_ = backend_->compile(model_.program, model_.weights, compile, loading_bar());
  }

  void run() {
    print("model {}, backend {}, prompt of {} tokens, {} rows a step at most, max-itl {:g} ms{}\n",
          model_.file.path(), backend_->name(), prompt_, engine_.max_rows, engine_.max_itl_ms,
          options_.batch_invariant ? ", batch-invariant" : "");
    const double alone = prompt_alone();
    print("the prompt alone: {:.1f} tokens/s\n\n", alone);
    print(
        "| streams | tokens/s | p50 ms | p99 ms | beside a prompt: p50 ms | p99 ms | prompt tokens/s | of "
        "alone |\n");
    print(
        "|--------:|---------:|-------:|-------:|------------------------:|-------:|----------------:|-------"
        "--:|\n");
    for (const int64_t streams : streams_) measure(streams, alone);
  }

 private:
  /// Tokens of an answer at most: more than come while a prompt is read.
  static constexpr int64_t kAnswer = 2048;

  engine::Request request(int64_t tokens, int64_t answer) {
    engine::Request out{.max_tokens = answer, .ignore_end = true, .use_cache = false};
    for (int64_t i = 0; i < tokens; ++i)
      out.prompt.push_back(static_cast<int32_t>(random_() % static_cast<uint64_t>(tokenizer_.size())));
    return out;
  }

  template <typename Condition>
  static void wait_until(Condition condition) {
    while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  static double rate(const engine::Result& result) {
    return static_cast<double>(result.prompt_tokens) * 1e9 / static_cast<double>(result.prompt_ns);
  }

  /// Tokens a second of the prompt: the better of two, or of one that takes long.
  double prompt_alone() {
    constexpr int64_t kLongNs = 20'000'000'000;
    double best = 0;
    for (int i = 0; i < 2; ++i) {
      engine::Engine engine(*executable_, tokenizer_, engine_);
      const auto clock = std::make_shared<Clock>(1);
      engine.submit(request(prompt_, 1), clock);
      wait_until([&] { return clock->ended.load(); });
      best = std::max(best, rate(clock->result));
      if (clock->result.prompt_ns > kLongNs) break;
    }
    return best;
  }

  void measure(int64_t streams, double alone) {
    engine::Engine engine(*executable_, tokenizer_, engine_);
    std::vector<std::shared_ptr<Clock>> clocks;
    std::vector<engine::RequestId> ids;
    for (int64_t i = 0; i < streams; ++i) {
      clocks.push_back(std::make_shared<Clock>(answer_));
      ids.push_back(engine.submit(request(depth_, answer_), clocks.back()));
    }
    const auto all_have = [&](int64_t more, const std::vector<int64_t>& from) {
      for (size_t i = 0; i < clocks.size(); ++i)
        if (!clocks[i]->ended && clocks[i]->tokens < from[i] + more) return false;
      return true;
    };
    const auto counts = [&] {
      std::vector<int64_t> out;
      out.reserve(clocks.size());
      for (const auto& clock : clocks) out.push_back(clock->tokens);
      return out;
    };
    wait_until([&] { return all_have(8, std::vector<int64_t>(clocks.size(), 0)); });
    const int64_t begin = now_ns();
    wait_until([&, from = counts()] { return all_have(options_.tokens, from); });
    const int64_t middle = now_ns();
    const auto prompt = std::make_shared<Clock>(1);
    engine.submit(request(prompt_, 1), prompt);
    wait_until([&] { return prompt->ended.load(); });
    const int64_t end = now_ns();
    for (const engine::RequestId id : ids) engine.cancel(id);
    engine.stop();
    const Gaps before = gaps_between(clocks, begin, middle), beside = gaps_between(clocks, middle, end);
    print("| {:7} | {:8.1f} | {:6.1f} | {:6.1f} | {:23.1f} | {:6.1f} | {:15.1f} | {:7.0f}% |\n", streams,
          static_cast<double>(before.ms.size()) * 1e9 / static_cast<double>(middle - begin),
          before.percentile(0.5), before.percentile(0.99), beside.percentile(0.5), beside.percentile(0.99),
          rate(prompt->result), 100 * rate(prompt->result) / alone);
    for (const auto& clock : clocks)
      if (clock->tokens == answer_)
        print("  an answer ended early, at {} tokens: its pauses are fewer than the prompt's steps\n",
              answer_);
  }

  LoadOptions options_;
  std::vector<int64_t> streams_;
  OpenedModel model_;
  text::Tokenizer tokenizer_;
  std::unique_ptr<program::Backend> backend_;
  engine::EngineOptions engine_;
  int64_t prompt_, depth_, answer_;
  std::unique_ptr<program::Executable> executable_;
  std::mt19937_64 random_{1};
};

}  // namespace

void add_load(CLI::App& app) {
  auto options = std::make_shared<LoadOptions>();
  CLI::App* command =
      app.add_subcommand("load", "Measure many answers at once, and a long prompt beside them");
  command->add_option("-m,--model", options->model, "GGUF file; without it the bundled model");
  command->add_option("--streams", options->streams, "answers at once, a list: 1,8,32")
      ->capture_default_str();
  command
      ->add_option("-p,--prompt", options->prompt, "tokens of the long prompt, at most the model's context")
      ->check(CLI::Range(2, 1 << 30))
      ->capture_default_str();
  command->add_option("-d,--depth", options->depth, "tokens of each answer's own prompt")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  command
      ->add_option("-n,--tokens", options->tokens,
                   "tokens of each answer that are timed without the long prompt")
      ->check(CLI::Range(1, 2048))
      ->capture_default_str();
  command->add_option("-u,--rows", options->rows, "rows a step at most; 0: as sluice serve has them")
      ->check(CLI::Range(0, 1 << 16))
      ->capture_default_str();
  command
      ->add_option("--max-itl", options->max_itl_ms, "milliseconds between two tokens; 0: 1000, on a GPU 100")
      ->check(number_range(0.0, 1e6))
      ->capture_default_str();
  add_invariant_option(*command, options->batch_invariant);
  command->add_option("-t,--threads", options->threads, "threads; 0: all that are usable")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  add_gpu_memory_option(*command, options->gpu);
  command->add_option("--backend", options->backend, kBackendHelp)->capture_default_str();
  command->add_flag("--force", options->force, "load even when memory is too small");
  add_loading_option(*command, options->no_repack);
  add_cache_option(*command, options->cache);
  command->callback([options] { Load(*options).run(); });
}

}  // namespace sluice::cli
