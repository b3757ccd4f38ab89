// What answers may say next, as the model's block of multi-token prediction says it: of a row's hidden state
// and the token behind it, the token after that. The block is a program of its own over the same weights,
// with a cache of its own layer in the same pages. Row i of a sequence is the trunk's hidden state i and
// token i + 1. Rows are kept until somebody wants a draft or a step's worth has come, so that a prompt's go
// through the block a step at a time; their hidden states lie where the block's next step begins with them,
// and no host need see them. Further tokens of a draft chain: the block's own hidden state, and the
// token that it said. Pages of cached prefixes hold the block's rows, too, but for each page's last one,
// which saw another next token, and for pages that a store brings: that costs drafts, never text.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/batch.h"
#include "engine/scheduler.h"
#include "program/executable.h"

namespace sluice::engine {

/// What was predicted for one sequence, and how often it was right.
class Prediction {
 public:
  static constexpr int64_t kMostTokens = 3;

  /// Sees whether what was predicted last came, and forgets it.
  void learn(std::span<const int32_t> tokens);
  /// How likely each token is right, if those before it are.
  std::span<const double> chances() const { return chances_; }
  /// The tokens that may follow, in their order.
  std::span<const int32_t> found() const { return {found_.data(), static_cast<size_t>(count_)}; }
  /// A token more, behind those that it has learnt from and those that were added since.
  void add(int32_t token) { found_[static_cast<size_t>(count_++)] = token; }

 private:
  std::array<int32_t, kMostTokens> found_{};
  int64_t count_ = 0;
  size_t behind_ = 0;  ///< tokens of the sequence, at the last call
  std::array<double, kMostTokens> chances_ = kHoped;
  static constexpr std::array<double, kMostTokens> kHoped = {0.7, 0.6, 0.5};
};

class TokenPredictor {
 public:
  /// Of executables of a model's two programs, compiled beside each other for as many rows and pages; `trunk`
  /// leaves hidden states. vocabulary: tokens that may be drafted.
  TokenPredictor(program::Executable& trunk, program::Executable& block, int64_t max_rows,
                 int32_t max_sequences, int64_t context, size_t vocabulary);

  /// Takes the hidden states of a step of the trunk, which has ended, or is in flight and no other behind it.
  void take(const program::StepInput& input, std::span<Sequence* const> running);
  /// Its tokens are drawn: keeps the rows that were right, and whose next token is known.
  void follow(std::span<Sequence* const> running);
  /// Whether there is what a draft for the sequence begins with.
  bool ready(const Sequence& sequence) const;

  /// A draft for a sequence that is ready.
  struct Ask {
    Sequence* sequence;
    Prediction* prediction;  ///< gets the tokens: fewer where pages end
    int64_t tokens;          ///< at most
    /// Where the row stands that gives its next token.
    int64_t position() const { return std::ssize(sequence->tokens) - 2 + std::ssize(prediction->found()); }
  };
  /// Steps of the block that it took.
  int64_t predict(std::span<const Ask> asks, std::span<Sequence* const> running);

 private:
  /// A row of the block: whose it is (0: nobody's), where, and the token behind it. Of the step that was
  /// taken last, until its tokens are drawn: nobody's, and its own token.
  struct Row {
    RequestId id;
    int32_t place, position, token;
  };
  struct Asked {
    const Ask* ask;
    int64_t row;  ///< of the block's step
  };

  void know(std::span<Sequence* const> running);
  bool is_stale(const Row& row) const;
  void replace(const Row& row);
  void drop_stale();
  void compute(std::span<const Ask> asks);
  void draft(const program::StepResult& said);
  int32_t likeliest(const program::RowResult& said) const;

  program::Executable& trunk_;
  program::Executable& block_;
  const bool finds_top_;  ///< the block
  const size_t max_rows_;
  const size_t vocabulary_;
  Batch batch_;
  std::vector<const Sequence*> by_place_;  ///< who runs
  std::vector<Row> rows_;                  ///< that the block has not seen, in the order of its hidden states
  size_t known_ = 0;                       ///< of them; the others are of the step that was taken last
  std::vector<program::Executable::RowCopy> copies_;
  std::vector<Asked> asked_;  ///< by output of the block's step
};

}  // namespace sluice::engine
