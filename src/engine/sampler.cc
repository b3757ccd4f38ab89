// The chain of samplers. A row has some 150,000 candidates and a token needs a few of them, so nothing here
// sorts a whole row unless the parameters ask for nearly all of it.
#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/error.h"

namespace sluice::engine {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The one order of candidates: total, so that no result depends on how a library sorts.
bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

float highest(std::span<const Candidate> candidates) {
  float best = -kInfinity;
  for (const Candidate& candidate : candidates) best = std::max(best, candidate.logit);
  return best;
}

// exp(logit - best), also when both are infinite.
double weight(float logit, float best) {
  return logit == best ? 1.0 : std::exp(static_cast<double>(logit) - static_cast<double>(best));
}

void penalties(SamplingRow& row) {
  const SamplingParams& params = row.params;
  if (!params.penalises()) return;
  for (Candidate& candidate : row.candidates) {
    const int32_t count = row.counts[candidate.token];
    if (count == 0) continue;
    float logit = candidate.logit;
    logit = logit > 0 ? logit / params.repeat_penalty : logit * params.repeat_penalty;
    candidate.logit = logit - params.presence_penalty - params.frequency_penalty * static_cast<float>(count);
  }
}

// Keeps the k likeliest, sorted. One sweep that writes only what beats the k-th of those seen so far: after
// the first few thousand candidates almost nothing does.
void top_k(SamplingRow& row) {
  const size_t k = static_cast<size_t>(row.params.top_k);
  const auto all = row.candidates;
  if (k == 0 || k >= all.size()) return;
  const size_t room = 2 * k + 64;  // how many may collect before the worst are dropped
  float floor = -kInfinity;  // at least the k-th highest logit so far; ids rise, so a tie comes too late
  size_t kept = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (kept >= k && !(all[i].logit > floor)) continue;
    all[kept++] = all[i];
    if (kept < room && kept != k) continue;
    std::nth_element(all.begin(), all.begin() + (k - 1), all.begin() + kept, likelier);
    kept = k;
    floor = all[k - 1].logit;
  }
  if (kept > k) std::nth_element(all.begin(), all.begin() + (k - 1), all.begin() + kept, likelier);
  row.candidates = all.first(k);
  std::sort(row.candidates.begin(), row.candidates.end(), likelier);
}

// Keeps the fewest likeliest candidates whose probabilities reach p, sorted: sorts a few, then four times as
// many, until they do.
void top_p(SamplingRow& row) {
  const double p = row.params.top_p;
  if (p >= 1) return;
  const auto all = row.candidates;
  const float best = highest(all);
  double total = 0;
  for (const Candidate& candidate : all) total += weight(candidate.logit, best);
  double sum = 0;
  size_t sorted = 0;
  for (size_t chunk = 64; sorted < all.size(); chunk *= 4) {
    const size_t end = std::min(all.size(), sorted + chunk);
    if (end < all.size()) std::nth_element(all.begin() + sorted, all.begin() + end, all.end(), likelier);
    std::sort(all.begin() + sorted, all.begin() + end, likelier);
    for (; sorted < end; ++sorted) {
      sum += weight(all[sorted].logit, best);
      if (sum < p * total) continue;
      row.candidates = all.first(sorted + 1);
      return;
    }
  }
}

// Keeps what is at least min_p times as likely as the likeliest.
void min_p(SamplingRow& row) {
  if (row.params.min_p <= 0) return;
  const float floor = highest(row.candidates) + std::log(row.params.min_p);
  const auto end = std::remove_if(row.candidates.begin(), row.candidates.end(),
                                  [floor](const Candidate& c) { return c.logit < floor; });
  row.candidates = row.candidates.first(end - row.candidates.begin());
}

// Counts logits from the highest before dividing, so that a tiny temperature cannot overflow.
void temperature(SamplingRow& row) {
  const float best = highest(row.candidates);
  for (Candidate& candidate : row.candidates)
    candidate.logit = candidate.logit == best ? 0 : (candidate.logit - best) / row.params.temperature;
}

constexpr SamplingStep kSteps[] = {
    {"penalties", "make tokens of the last penalty_window less likely", penalties},
    {"top_k", "keep the k likeliest tokens", top_k},
    {"top_p", "keep the likeliest tokens that together reach probability p", top_p},
    {"min_p", "keep tokens at least min_p times as likely as the likeliest", min_p},
    {"temperature", "divide logits: below 1 prefers likely tokens, above 1 evens out", temperature},
};

// SplitMix64 (Steele, Lea and Flood 2014): spreads a seed over a state.
uint64_t split_mix(uint64_t& state) {
  uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

std::span<const SamplingStep> sampling_steps() { return kSteps; }

void SamplingParams::validate() const {
  Problems problems;
  const auto check = [&problems](const char* name, float value, float low, float high) {
    if (!(value >= low && value <= high))  // false for NaN
      problems.add("{} is {}, expected {} to {}", name, value, low, high);
  };
  check("temperature", temperature, 0, 1000);
  check("top_p", top_p, 0, 1);
  check("min_p", min_p, 0, 1);
  check("repeat_penalty", repeat_penalty, 0.01f, 100);
  check("presence_penalty", presence_penalty, -100, 100);
  check("frequency_penalty", frequency_penalty, -100, 100);
  if (top_k < 0) problems.add("top_k is {}, expected 0 (off) or more", top_k);
  if (penalty_window < -1 || penalty_window > kLongestWindow)
    problems.add("penalty_window is {}, expected -1 (all) to {}", penalty_window, kLongestWindow);
  for (const auto& [token, bias] : logit_bias) {
    if (token < 0) problems.add("logit_bias: token {}, expected 0 or more", token);
    if (!(bias < kInfinity)) problems.add("logit_bias of token {} is {}, expected a number", token, bias);
  }
  problems.throw_if_any("sampling");
}

Sampler::Sampler(const SamplingParams& params, int32_t vocab_size) : Sampler(params, std::span<Candidate>()) {
  CHECK(vocab_size > 0, "vocab_size {}", vocab_size);
  own_scratch_.resize(vocab_size);
  candidates_ = own_scratch_;
  if (params.penalises()) counts_.resize(vocab_size);
}

Sampler::Sampler(const SamplingParams& params, std::span<Candidate> scratch)
    : params_(params), candidates_(scratch) {
  params.validate();
  if (params.penalises()) {
    counts_.resize(scratch.size());
    recent_.reserve(std::max(params.penalty_window, 0));
  }
  uint64_t state = params.seed;
  for (uint64_t& word : random_state_) word = split_mix(state);
}

// The candidates in the order of their ids; false: none of them is above minus infinity.
bool Sampler::fill(std::span<const float> logits, std::span<const uint32_t> allowed) {
  bool any = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = std::isnan(logits[i]) ? -kInfinity : logits[i];
    candidates_[i] = {logit, static_cast<int32_t>(i)};
    any |= logit > -kInfinity;
  }
  if (allowed.empty() && params_.logit_bias.empty()) return any;
  for (const auto& [token, bias] : params_.logit_bias) {
    const auto i = static_cast<size_t>(token);
    if (i < candidates_.size() && candidates_[i].logit > -kInfinity) candidates_[i].logit += bias;
  }
  any = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool may = allowed.empty() || (i / 32 < allowed.size() && (allowed[i / 32] >> (i % 32) & 1) != 0);
    if (!may) candidates_[i].logit = -kInfinity;
    any |= candidates_[i].logit > -kInfinity;
  }
  return any;
}

int32_t Sampler::sample(std::span<const float> logits, std::span<const uint32_t> allowed) {
  CHECK(logits.size() == candidates_.size(), "{} logits for {} tokens", logits.size(), candidates_.size());
  const bool any = fill(logits, allowed);
  SamplingRow row{params_, counts_, candidates_};
  const bool greedy = params_.temperature == 0;
  if (!any) {
    if (!greedy) uniform();
    return 0;
  }
  if (greedy) {
    penalties(row);
    Candidate best = row.candidates.front();
    for (const Candidate& candidate : row.candidates)  // ids rise: of equal ones the first stays
      if (candidate.logit > best.logit) best = candidate;
    return best.token;
  }
  for (const SamplingStep& step : kSteps) step.apply(row);
  return draw(row.candidates);
}

int32_t Sampler::draw(std::span<Candidate> candidates) {
  const float best = highest(candidates);
  double total = 0;
  for (Candidate& candidate : candidates) {
    candidate.logit = static_cast<float>(weight(candidate.logit, best));  // from here on a weight
    total += candidate.logit;
  }
  const double target = uniform() * total;
  double sum = 0;
  int32_t last = candidates.front().token;
  for (const Candidate& candidate : candidates) {
    if (candidate.logit == 0) continue;  // not even when a rounded sum falls short of the target
    last = candidate.token;
    sum += candidate.logit;
    if (target < sum) break;
  }
  return last;
}

// xoshiro256** (Blackman and Vigna 2018), the upper 53 bits as a number in [0, 1).
double Sampler::uniform() {
  auto& s = random_state_;
  const uint64_t result = std::rotl(s[1] * 5, 7) * 9;
  const uint64_t shifted = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= shifted;
  s[3] = std::rotl(s[3], 45);
  return static_cast<double>(result >> 11) * 0x1p-53;
}

void Sampler::accept(int32_t token) {
  CHECK(token >= 0 && static_cast<size_t>(token) < candidates_.size(), "token {} of {}", token,
        candidates_.size());
  if (!params_.penalises()) return;
  ++counts_[token];
  if (params_.penalty_window < 0) return;
  if (recent_.size() < static_cast<size_t>(params_.penalty_window)) {
    recent_.push_back(token);
    return;
  }
  --counts_[recent_[next_]];
  recent_[next_] = token;
  next_ = (next_ + 1) % recent_.size();
}

}  // namespace sluice::engine
