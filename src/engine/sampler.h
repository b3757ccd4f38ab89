// From logits to a token: a chain of small samplers in a table (docs/adding.md says how to add one).
// Knows one row of numbers and its parameters; neither models nor text.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "program/step.h"

namespace sluice::engine {

struct SamplingParams {
  float temperature = 0.8f;  ///< 0: greedy
  int32_t top_k = 40;        ///< 0: off
  float top_p = 0.95f;       ///< 1: off
  float min_p = 0.01f;       ///< 0: off; more makes reasoning models poorer
  /// 1: off; divides positive logits of tokens among the last penalty_window, multiplies negative ones. As
  /// llama.cpp has it: the prompt's count.
  float repeat_penalty = 1.0f;
  int32_t penalty_window = 64;  ///< -1: all
  // As OpenAI has them: of all tokens that were drawn, and of these alone.
  float presence_penalty = 0.0f;   ///< 0: off; subtracted once from tokens that were drawn
  float frequency_penalty = 0.0f;  ///< 0: off; subtracted for each time
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;  ///< added to these tokens' logits before all else

  /// The longest penalty_window that is not "all".
  static constexpr int32_t kLongestWindow = 1 << 20;

  bool penalises_recent() const { return repeat_penalty != 1 && penalty_window != 0; }
  bool penalises_drawn() const { return presence_penalty != 0 || frequency_penalty != 0; }
  bool penalises() const { return penalises_recent() || penalises_drawn(); }
  /// Throws Error that names the parameters that are out of range (NaN included).
  void validate() const;
};

using Candidate = program::Likely;

/// One row on its way through the chain. The candidates are in the order of their ids, or, once a sampler had
/// to sort them, the likeliest first with ties to the lower id; at least one of them is above minus infinity.
struct SamplingRow {
  const SamplingParams& params;
  std::span<const int32_t> recent;  ///< how often each token is in the window, by id; empty: not counted
  std::span<const int32_t> drawn;   ///< how often each was drawn
  std::span<Candidate> candidates;  ///< what is left; never empty
};

/// One sampler of the chain: it narrows the candidates or changes their logits, in place.
struct SamplingStep {
  const char* name;
  const char* help;  ///< one line for a user
  void (*apply)(SamplingRow& row);
};

/// The chain, in the order in which it runs: penalties, top_k, top_p, min_p, temperature. So the temperature
/// never changes which tokens may be drawn. A token is then drawn from the softmax of what is left.
std::span<const SamplingStep> sampling_steps();

/// What a sampler works in, during sample() only: samplers of one thread may share one.
struct SamplerScratch {
  explicit SamplerScratch(size_t vocab_size) : candidates(vocab_size), logits(vocab_size) {}
  std::vector<Candidate> candidates;
  std::vector<float> logits;
};

/// Draws tokens. All memory is taken by the constructor; the same seed and logits give the same tokens on
/// every platform (no library distribution is used).
class Sampler {
 public:
  /// Throws Error when the parameters are out of range. The scratch must outlive the sampler.
  Sampler(const SamplingParams& params, SamplerScratch& scratch);
  /// With a scratch of its own.
  Sampler(const SamplingParams& params, int32_t vocab_size);

  /// One token from one row of logits [vocab_size]. Ties go to the lower id. NaN counts as minus infinity; a
  /// row of nothing else gives token 0. Plus infinity beats everything finite. A greedy row uses no random
  /// number, any other row uses one. `allowed`: bit t % 32 of word t / 32 says whether token t may come;
  /// tokens beyond it may not; empty: all may.
  int32_t sample(std::span<const float> logits, std::span<const uint32_t> allowed = {});
  /// Whether a row's kMaxTopK likeliest tokens tell what sample() would draw from the whole row.
  bool draws_from_top() const;
  /// How it draws from those, in the words of program/step.h: the next token, or the one after so many
  /// others.
  program::Draw draw_after(int tokens) const;
  /// The same token from those (program/step.h: RowResult::top).
  int32_t sample(std::span<const Candidate> likeliest);
  /// Tells the penalties of a token of the prompt.
  void read(int32_t token);
  /// And of one that was drawn.
  void accept(int32_t token);

 private:
  Sampler(const SamplingParams& params, std::unique_ptr<SamplerScratch> scratch);
  std::span<const float> edited(std::span<const float> logits, std::span<const uint32_t> allowed,
                                bool with_penalties);
  /// Whether top_k comes first, and is small beside the vocabulary.
  bool shortlists() const;
  int32_t draw_from_shortlist(std::span<Candidate> candidates);
  int32_t draw(std::span<Candidate> candidates);
  using RandomState = std::array<uint64_t, 4>;
  static double uniform(RandomState& state);

  SamplingParams params_;
  std::unique_ptr<SamplerScratch> own_scratch_;
  SamplerScratch* scratch_;
  std::vector<int32_t> window_;  ///< ring of the last tokens; unused when all tokens count
  std::vector<int32_t> recent_;  ///< occurrences in the window, by token; empty: nobody asks
  std::vector<int32_t> drawn_;   ///< among the tokens that were drawn; the same
  size_t next_ = 0;
  RandomState random_state_;
};

}  // namespace sluice::engine
