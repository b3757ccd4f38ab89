// What program/step.h's definition of a draw gives, in double precision: for what draws in single precision,
// or by other ways.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "program/step.h"

namespace sluice::test {

struct ExactDraw {
  int32_t token;
  double margin;  ///< how near, in shares of all probability, what decided is to deciding otherwise
};

/// From a row's likeliest tokens, the likeliest first; 0 where there is none.
inline ExactDraw draw_exactly(std::span<const program::Likely> sorted, const program::Draw& how) {
  if (sorted[0].token < 0) return {0, 1};
  if (how.temperature == 0) return {sorted[0].token, 1};
  const auto difference = [&](size_t i) {
    return sorted[i].logit == sorted[0].logit ? 0 : static_cast<double>(sorted[i].logit) - sorted[0].logit;
  };
  size_t top_k = static_cast<size_t>(how.top_k);
  while (sorted[top_k - 1].token < 0) --top_k;
  double total = 0, before = 0, margin = 1;
  for (size_t i = 0; i < top_k; ++i) total += std::exp(difference(i));
  std::vector<double> upto;
  for (size_t i = 0; i < top_k; ++i) {
    if (i > 0 && how.top_p < 1) {
      margin = std::min(margin, std::abs(before / total - how.top_p));
      if (before >= how.top_p * total) break;
    }
    before += std::exp(difference(i));
    if (how.min_p > 0) {
      margin = std::min(margin, std::abs(difference(i) - std::log(how.min_p)));
      if (difference(i) < std::log(how.min_p)) break;
    }
    upto.push_back((upto.empty() ? 0 : upto.back()) + std::exp(difference(i) / how.temperature));
  }
  size_t place = 0;
  for (const double sum : upto) {
    margin = std::min(margin, std::abs(sum / upto.back() - how.uniform));
    place += sum <= how.uniform * upto.back();
  }
  return {sorted[std::min(place, upto.size() - 1)].token, margin};
}

}  // namespace sluice::test
