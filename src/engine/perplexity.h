// How well a model predicts a text, and how far two sets of logits for the same text lie apart. Numbers only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::engine {

/// A stretch of a text that is run as one sequence. Its tokens from `first_scored` on are predicted; those
/// before are context, or were predicted by the window before.
struct Window {
  int64_t begin, end;  ///< tokens of the text
  int64_t first_scored;
};

/// Windows of `length` tokens that begin every `stride` tokens (1 to length) until they reach the text's end;
/// the last may be shorter. Every token is predicted once, except a window's first when nothing is before it.
std::vector<Window> windows_of(int64_t tokens, int64_t length, int64_t stride);

/// ln sum exp of a row of logits, in double.
double log_sum_exp(std::span<const float> logits);

/// A mean and how sure it is, from values one at a time (Welford 1962).
class Mean {
 public:
  void add(double value);
  int64_t count() const { return count_; }
  double mean() const { return mean_; }
  /// Of the mean, were the values independent; 0 below two values.
  double standard_error() const;

 private:
  int64_t count_ = 0;
  double mean_ = 0, squares_ = 0;
};

/// Kullback-Leibler divergences in nats of predictions from their references, row by row.
class Divergences {
 public:
  /// KL(softmax(reference) || softmax(logits)).
  void add(std::span<const float> reference, std::span<const float> logits);

  const Mean& mean() const { return mean_; }
  /// The value that a share of the rows does not exceed (nearest rank); share in (0, 1].
  double quantile(double share) const;
  double largest() const { return quantile(1); }
  /// Share of the rows whose likeliest token is the reference's.
  double same_top() const;

 private:
  Mean mean_;
  std::vector<double> values_;
  int64_t same_ = 0;
};

}  // namespace sluice::engine
