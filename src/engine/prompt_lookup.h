// What a sequence may say next, looked up in what it has said already (prompt lookup decoding): where its
// last tokens stood before, the tokens that followed there may follow again. Edited code, quotations, names
// and JSON are like that. Learns how often it is so. Knows one sequence of tokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace sluice::engine {

class PromptLookup {
 public:
  static constexpr int64_t kMostTokens = 7;  ///< found at a time

  /// `prediction`: tokens of which some are likely to come; they are looked up as though they had been said.
  explicit PromptLookup(std::vector<int32_t> prediction = {}) : text_(std::move(prediction)) {}

  /// Reads what the sequence has grown by since the last call, and finds what may follow. Its other tokens
  /// are the same.
  void look(std::span<const int32_t> tokens);
  /// The tokens that may follow, in their order; none where the last tokens are new.
  std::span<const int32_t> found() const { return {found_.data(), static_cast<size_t>(count_)}; }
  /// How likely each of them is right, if those before it are.
  std::span<const double> chances() const { return {chances_.data(), static_cast<size_t>(count_)}; }

 private:
  /// Tokens that must agree before a place is one to look at, and those of the second table, whose places
  /// are rarer and better.
  static constexpr std::array<size_t, 2> kLengths = {2, 4};
  /// More tokens that agree say no more.
  static constexpr size_t kMostAgree = 32;

  void learn(std::span<const int32_t> came);
  void index();
  size_t agreeing(size_t place) const;

  std::vector<int32_t> text_;  ///< the prediction, and all that was said
  /// By a hash of as many tokens: the place behind where they stood last; 0: nowhere, or elsewhere.
  std::array<std::vector<int32_t>, kLengths.size()> places_;
  size_t known_ = 0;    ///< tokens of the sequence, at the last call
  size_t indexed_ = 0;  ///< places
  size_t place_ = 0;    ///< whose tokens were found at the last call; it goes on with the sequence; 0: none
  size_t agree_ = 0;    ///< tokens before it that are those at the end
  std::array<int32_t, kMostTokens> found_{};
  std::array<double, kMostTokens> chances_{};
  int64_t count_ = 0;
  /// How often what was found was right, by how many tokens before it agreed (rate_of); at first, what is
  /// seen in edited code.
  std::array<double, 5> rates_ = {0.6, 0.7, 0.8, 0.9, 0.95};
};

}  // namespace sluice::engine
