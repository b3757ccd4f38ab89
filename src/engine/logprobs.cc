#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice::engine {

void log_probabilities(std::span<const float> logits, int32_t token, int32_t count,
                       std::vector<TokenLogprob>& out) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto value = [logits](size_t i) { return std::isnan(logits[i]) ? -kInfinity : logits[i]; };
  const auto most = std::min(static_cast<size_t>(count), logits.size());
  float best = -kInfinity;
  for (size_t i = 0; i < logits.size(); ++i) best = std::max(best, value(i));
  out.assign(1, {token, value(static_cast<size_t>(token))});
  double sum = 0;  // of exp(logit - best): at least 1
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = value(i);
    sum += logit == best ? 1.0f : std::exp(logit - best);
    // The likeliest so far stand behind the token, sorted; most rows' numbers end at the first comparison.
    if (out.size() - 1 == most && (most == 0 || logit <= out.back().logprob)) continue;
    if (out.size() - 1 == most) out.pop_back();
    const auto place = std::upper_bound(out.begin() + 1, out.end(), logit,
                                        [](float l, const TokenLogprob& other) { return l > other.logprob; });
    out.insert(place, {static_cast<int32_t>(i), logit});
  }
  const double norm = best + std::log(sum);
  for (TokenLogprob& entry : out)
    entry.logprob = best == -kInfinity || entry.logprob == -kInfinity
                        ? -kInfinity
                        : static_cast<float>(entry.logprob == best ? -std::log(sum) : entry.logprob - norm);
}

}  // namespace sluice::engine
