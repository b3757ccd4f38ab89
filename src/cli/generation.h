// What the commands that generate text share: their flags, and a model made ready to generate.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/assemble.h"
#include "cli/cli11.h"
#include "cli/drafting.h"
#include "cli/ranks.h"
#include "engine/generator.h"
#include "model/model.h"
#include "program/backend.h"
#include "text/tokenizer.h"

namespace sluice::cli {

/// Rows of prompts a step: at most, and at most but for a deep one alone (engine::step_rows); and of a step
/// aside (0: none).
struct PromptRows {
  int64_t most, shallow, aside = 0;

  /// No more than prompts of so many tokens come to.
  PromptRows within(int64_t context) const;
};

/// Of one reader: more of them where each expert sees a few of a step's rows.
PromptRows prefill_rows(const model::Spec& spec, const program::Backend& backend);

struct GenerationOptions {
  std::string model, backend = "cpu";
  int64_t tokens = -1, context = 0;
  int threads = 0;
  int64_t seed = -1;
  engine::SamplingParams sampling;
  std::vector<std::string> stops;
  bool force = false;
  bool no_repack = false;
  bool batch_invariant = false;  ///< the same text whatever is drafted
  GpuShare gpu = {};
  DraftOptions drafts = {};
  quant::Type cache = quant::Type::F16;
  RankOptions ranks = {};

  /// What every rank loads.
  RankModel rank_model() const { return {model, backend, threads, no_repack, cache}; }
};

/// Adds the flags of these options.
void add_generation_options(CLI::App& command, GenerationOptions& options);

/// Adds the sampling flags of these options, --seed among them.
void add_sampling_options(CLI::App& command, GenerationOptions& options);

/// These options' sampling, and the file's (general.sampling.*) where the command line says nothing. Throws
/// Error when it is out of range.
engine::SamplingParams chosen_sampling(const CLI::App& command, const gguf::File& file,
                                       const GenerationOptions& options);

/// A file, compiled for a backend, with a generator over it. Stays where it is: its parts point at each
/// other.
class LoadedModel {
 public:
  /// Throws Error when the file or an option makes no sense. Sampling that the command line does not give is
  /// the file's (general.sampling.*); a seed of -1 becomes a random one.
  LoadedModel(const CLI::App& command, const GenerationOptions& options);
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const gguf::File& file() const { return model_.file; }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  engine::Generator& generator() { return *generator_; }
  int64_t context() const { return generator_->context(); }
  const engine::SamplingParams& sampling() const { return sampling_; }

 private:
  OpenedModel model_;
  text::Tokenizer tokenizer_;
  engine::SamplingParams sampling_;
  std::unique_ptr<program::Backend> backend_;
  DraftingModel executables_;
  std::optional<engine::Generator> generator_;
};

/// One line on standard error: tokens, tokens a second, seed.
void print_statistics(const engine::Result& result, uint64_t seed);

}  // namespace sluice::cli
