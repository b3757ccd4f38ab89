#include "engine/perplexity.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace sluice::engine {

std::vector<Window> windows_of(int64_t tokens, int64_t length, int64_t stride) {
  CHECK(length >= 2 && stride >= 1 && stride <= length, "length {}, stride {}", length, stride);
  std::vector<Window> windows;
  for (int64_t begin = 0, done = 0; done < tokens; begin += stride) {
    const int64_t end = std::min(tokens, begin + length);
    const int64_t first = std::max(done, begin + 1);
    if (first < end) windows.push_back({begin, end, first});
    done = end;
  }
  return windows;
}

double log_sum_exp(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

void Mean::add(double value) {
  ++count_;
  const double before = value - mean_;
  mean_ += before / static_cast<double>(count_);
  squares_ += before * (value - mean_);
}

double Mean::standard_error() const {
  if (count_ < 2) return 0;
  const auto n = static_cast<double>(count_);
  return std::sqrt(squares_ / (n - 1) / n);
}

void Divergences::add(std::span<const float> reference, std::span<const float> logits) {
  CHECK(reference.size() == logits.size());
  const double p_sum = log_sum_exp(reference), q_sum = log_sum_exp(logits);
  double kl = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double log_p = reference[i] - p_sum, p = std::exp(log_p);
    if (p != 0) kl += p * (log_p - (logits[i] - q_sum));  // what has no probability adds nothing
  }
  const auto top = [](std::span<const float> row) {
    return std::max_element(row.begin(), row.end()) - row.begin();
  };
  same_ += top(reference) == top(logits) ? 1 : 0;
  mean_.add(kl);
  values_.push_back(kl);
}

double Divergences::quantile(double share) const {
  if (values_.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values_.size())));
  std::vector<double> values = values_;
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(std::clamp<size_t>(rank, 1, values.size()) - 1);
  // NaN, which a damaged model gives, counts as the largest.
  std::nth_element(values.begin(), at, values.end(),
                   [](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; });
  return *at;
}

double Divergences::same_top() const {
  return values_.empty() ? 1.0 : static_cast<double>(same_) / static_cast<double>(values_.size());
}

}  // namespace sluice::engine
