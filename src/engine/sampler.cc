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

float penalised(float logit, size_t token, const SamplingRow& row) {
  const SamplingParams& params = row.params;
  if (!row.recent.empty() && row.recent[token] > 0)
    logit = logit > 0 ? logit / params.repeat_penalty : logit * params.repeat_penalty;
  if (!row.drawn.empty() && row.drawn[token] > 0)
    logit -= params.presence_penalty + params.frequency_penalty * static_cast<float>(row.drawn[token]);
  return logit;
}

void penalties(SamplingRow& row) {
  if (row.recent.empty() && row.drawn.empty()) return;
  for (Candidate& candidate : row.candidates)
    candidate.logit = penalised(candidate.logit, static_cast<size_t>(candidate.token), row);
}

// The k likeliest of those that are offered in the order of their ids, collected in all[0, 2 k + 64) at most:
// only what beats the k-th of those seen so far, which after the first few thousand is almost nothing.
class Shortlist {
 public:
  Shortlist(std::span<Candidate> all, size_t k) : all_(all), k_(k) {}

  /// What does not exceed this need not be offered; minus infinity until there are k.
  float floor() const { return floor_; }
  bool full() const { return kept_ >= k_; }
  void offer(Candidate candidate) {
    if (full() && !(candidate.logit > floor_)) return;
    all_[kept_++] = candidate;
    if (kept_ == 2 * k_ + 64 || kept_ == k_) drop_worst();
  }
  /// Sorted.
  std::span<Candidate> finish() {
    if (kept_ > k_) drop_worst();
    const auto best = all_.first(std::min(kept_, k_));
    std::sort(best.begin(), best.end(), likelier);
    return best;
  }

 private:
  void drop_worst() {
    const auto last = all_.begin() + static_cast<int64_t>(k_) - 1;
    std::nth_element(all_.begin(), last, all_.begin() + static_cast<int64_t>(kept_), likelier);
    kept_ = k_;
    floor_ = last->logit;
  }

  std::span<Candidate> all_;
  size_t k_, kept_ = 0;
  float floor_ = -kInfinity;  // of equal ones the first stays: ids rise
};

void top_k(SamplingRow& row) {
  const size_t k = static_cast<size_t>(row.params.top_k);
  if (k == 0 || k >= row.candidates.size()) return;
  Shortlist list(row.candidates, k);
  for (const Candidate& candidate : row.candidates) list.offer(candidate);
  row.candidates = list.finish();
}

// Calls visit(i) for at least the numbers above floor(), in their order. Blocks without one are passed over
// by vector comparisons.
template <typename Floor, typename Visit>
void each_above(std::span<const float> row, Floor floor, Visit visit) {
  constexpr size_t kBlock = 64;
  for (size_t first = 0; first < row.size(); first += kBlock) {
    const auto block = row.subspan(first, std::min(kBlock, row.size() - first));
    const float least = floor();
    int above = 0;
    for (const float logit : block) above |= logit > least;
    if (above == 0) continue;
    for (size_t i = 0; i < block.size(); ++i)
      if (block[i] > least) visit(first + i);
  }
}

// The same as the chain down to top_k, without making candidates of the whole row. What is not above minus
// infinity is left out: it could not be drawn.
std::span<Candidate> shortlist(std::span<const float> row, size_t k, std::span<Candidate> scratch) {
  Shortlist list(scratch, k);
  each_above(
      row, [&list] { return list.floor(); },
      [&](size_t i) {
        list.offer({row[i], static_cast<int32_t>(i)});
      });
  return list.finish();
}

// The first of the highest; 0 when there is none above minus infinity.
int32_t likeliest(std::span<const float> row) {
  Candidate best{-kInfinity, 0};
  each_above(
      row, [&best] { return best.logit; },
      [&](size_t i) {
        if (row[i] > best.logit) best = {row[i], static_cast<int32_t>(i)};
      });
  return best.token;
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
    {"penalties", "make tokens that were seen less likely", penalties},
    {"top_k", "keep the k likeliest tokens", top_k},
    {"top_p", "keep the likeliest tokens that together reach probability p", top_p},
    {"min_p", "keep tokens at least min_p times as likely as the likeliest", min_p},
    {"temperature", "divide logits: below 1 prefers likely tokens, above 1 evens out", temperature},
};

/// The steps that follow what shortlist() does.
constexpr auto kAfterTopK = std::span(kSteps).subspan(2);

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

Sampler::Sampler(const SamplingParams& params, SamplerScratch& scratch)
    : params_(params), scratch_(&scratch) {
  params.validate();
  if (params.penalises_drawn()) drawn_.resize(scratch.logits.size());
  if (params.penalises_recent()) {
    recent_.resize(scratch.logits.size());
    window_.reserve(std::max(params.penalty_window, 0));
  }
  uint64_t state = params.seed;
  for (uint64_t& word : random_state_) word = split_mix(state);
}

Sampler::Sampler(const SamplingParams& params, std::unique_ptr<SamplerScratch> scratch)
    : Sampler(params, *scratch) {
  own_scratch_ = std::move(scratch);
}

Sampler::Sampler(const SamplingParams& params, int32_t vocab_size)
    : Sampler(params, std::make_unique<SamplerScratch>(vocab_size)) {
  CHECK(vocab_size > 0, "vocab_size {}", vocab_size);
}

// The row with biases, what is not allowed at minus infinity and, if asked for, the penalties; itself where
// nothing of that applies.
std::span<const float> Sampler::edited(std::span<const float> logits, std::span<const uint32_t> allowed,
                                       bool with_penalties) {
  const bool penalises = with_penalties && params_.penalises();
  if (allowed.empty() && params_.logit_bias.empty() && !penalises) return logits;
  std::vector<float>& row = scratch_->logits;
  std::copy(logits.begin(), logits.end(), row.begin());
  for (const auto& [token, bias] : params_.logit_bias)
    if (static_cast<size_t>(token) < row.size() && row[token] > -kInfinity) row[token] += bias;
  for (size_t first = 0; first < row.size() && !allowed.empty(); first += 32) {
    const uint32_t word = first / 32 < allowed.size() ? allowed[first / 32] : 0;
    if (word == ~0u) continue;
    for (size_t i = first; i < std::min(row.size(), first + 32); ++i)
      if ((word >> (i - first) & 1) == 0) row[i] = -kInfinity;
  }
  if (!penalises) return row;
  const SamplingRow seen{params_, recent_, drawn_, {}};
  for (size_t i = 0; i < row.size(); ++i) row[i] = penalised(row[i], i, seen);
  return row;
}

bool Sampler::shortlists() const {
  const size_t k = static_cast<size_t>(params_.top_k);
  return k > 0 && 2 * k + 64 <= scratch_->candidates.size();
}

bool Sampler::draws_from_top() const {
  if (!params_.logit_bias.empty() || params_.penalises()) return false;
  return params_.temperature == 0 || (shortlists() && params_.top_k <= program::kMaxTopK);
}

int32_t Sampler::sample(std::span<const Candidate> likeliest) {
  const auto end = std::ranges::find_if(likeliest, [](const Candidate& c) { return c.token < 0; });
  auto best = likeliest.first(static_cast<size_t>(end - likeliest.begin()));
  if (params_.temperature == 0) return best.empty() ? 0 : best.front().token;
  best = best.first(std::min(best.size(), static_cast<size_t>(params_.top_k)));
  std::ranges::copy(best, scratch_->candidates.begin());
  return draw_from_shortlist(std::span(scratch_->candidates).first(best.size()));
}

int32_t Sampler::draw_from_shortlist(std::span<Candidate> candidates) {
  if (candidates.empty()) {
    uniform(random_state_);  // a row uses one, whatever it holds
    return 0;
  }
  SamplingRow row{params_, recent_, drawn_, candidates};
  for (const SamplingStep& step : kAfterTopK) step.apply(row);
  return draw(row.candidates);
}

int32_t Sampler::sample(std::span<const float> logits, std::span<const uint32_t> allowed) {
  const std::span<Candidate> all = scratch_->candidates;
  CHECK(logits.size() == all.size(), "{} logits for {} tokens", logits.size(), all.size());
  if (params_.temperature == 0) return likeliest(edited(logits, allowed, true));
  SamplingRow row{params_, recent_, drawn_, all};
  if (shortlists()) {
    return draw_from_shortlist(
        shortlist(edited(logits, allowed, true), static_cast<size_t>(params_.top_k), all));
  }
  bool any = false;
  const auto values = edited(logits, allowed, false);
  for (size_t i = 0; i < values.size(); ++i) {
    const float logit = std::isnan(values[i]) ? -kInfinity : values[i];
    all[i] = {logit, static_cast<int32_t>(i)};
    any |= logit > -kInfinity;
  }
  if (any) {
    for (const SamplingStep& step : kSteps) step.apply(row);
    return draw(row.candidates);
  }
  uniform(random_state_);  // a row uses one, whatever it holds
  return 0;
}

program::Draw Sampler::draw_after(int tokens) const {
  if (params_.temperature == 0) return {};
  RandomState state = random_state_;
  double next = 0;
  for (int i = 0; i <= tokens; ++i) next = uniform(state);
  // The nearest float may be 1.
  const float below_one = std::nextafter(1.0f, 0.0f);
  return {params_.top_k, params_.top_p, params_.min_p, params_.temperature,
          std::min(static_cast<float>(next), below_one)};
}

int32_t Sampler::draw(std::span<Candidate> candidates) {
  const float best = highest(candidates);
  double total = 0;
  for (Candidate& candidate : candidates) {
    candidate.logit = static_cast<float>(weight(candidate.logit, best));  // from here on a weight
    total += candidate.logit;
  }
  const double target = uniform(random_state_) * total;
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
double Sampler::uniform(RandomState& s) {
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

void Sampler::read(int32_t token) {
  const size_t known = scratch_->candidates.size();
  CHECK(token >= 0 && static_cast<size_t>(token) < known, "token {} of {}", token, known);
  if (recent_.empty()) return;
  ++recent_[token];
  if (params_.penalty_window < 0) return;
  if (window_.size() < static_cast<size_t>(params_.penalty_window)) {
    window_.push_back(token);
    return;
  }
  --recent_[window_[next_]];
  window_[next_] = token;
  next_ = (next_ + 1) % window_.size();
}

void Sampler::accept(int32_t token) {
  read(token);
  if (!drawn_.empty()) ++drawn_[token];
}

}  // namespace sluice::engine
