// The samplers against brute force: what stays in, with which probability, and what never may happen.
#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "base/clock.h"
#include "base/error.h"
#include "engine/logprobs.h"
#include "support/exact_draw.h"

namespace sluice::engine {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Nothing but a temperature of 1: every test turns on what it is about.
SamplingParams plain() {
  SamplingParams params;
  params.temperature = 1;
  params.top_k = 0;
  params.top_p = 1;
  params.min_p = 0;
  return params;
}

SamplingParams greedy() {
  SamplingParams params = plain();
  params.temperature = 0;
  return params;
}

std::vector<float> random_logits(std::mt19937& random, size_t count, bool ties) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = ties ? std::round(normal(random)) : normal(random);
  return logits;
}

/// Ids in the order of their logits, ties to the lower id.
std::vector<int32_t> ranking(const std::vector<float>& logits) {
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  return ids;
}

/// Applies one step of the chain to a row and returns what is left, in its order.
std::vector<Candidate> apply(const std::string& name, const SamplingParams& params,
                             const std::vector<float>& logits, const std::vector<int32_t>& recent = {},
                             const std::vector<int32_t>& drawn = {}) {
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < logits.size(); ++i) candidates.push_back({logits[i], static_cast<int32_t>(i)});
  SamplingRow row{params, recent, drawn, candidates};
  for (const SamplingStep& step : sampling_steps())
    if (step.name == name) step.apply(row);
  return {row.candidates.begin(), row.candidates.end()};
}

std::vector<int32_t> tokens_of(const std::vector<Candidate>& candidates) {
  std::vector<int32_t> out;
  out.reserve(candidates.size());
  for (const Candidate& candidate : candidates) out.push_back(candidate.token);
  return out;
}

/// Sizes and shapes of rows that each filter is checked on.
template <typename Check>
void for_random_rows(Check check) {
  std::mt19937 random(1);
  for (const size_t count : {1, 2, 5, 60, 64, 65, 300, 5000, 20000})
    for (const bool ties : {false, true})
      for (int round = 0; round < (count > 1000 ? 2 : 20); ++round)
        check(random_logits(random, count, ties), random);
}

TEST(Sampler, TheChainHasItsDocumentedOrder) {
  std::vector<std::string> names;
  for (const SamplingStep& step : sampling_steps()) names.push_back(step.name);
  EXPECT_THAT(names, testing::ElementsAre("penalties", "top_k", "top_p", "min_p", "temperature"));
}

TEST(Sampler, TopKKeepsTheKLikeliestInOrder) {
  for_random_rows([](const std::vector<float>& logits, std::mt19937&) {
    const auto order = ranking(logits);
    for (const size_t k : {1, 2, 40, 64, 1000, 19999}) {
      SamplingParams params = plain();
      params.top_k = static_cast<int32_t>(k);
      const auto left = tokens_of(apply("top_k", params, logits));
      if (k >= logits.size()) {
        ASSERT_EQ(left.size(), logits.size());
      } else {
        ASSERT_EQ(left, std::vector<int32_t>(order.begin(), order.begin() + k)) << logits.size() << " " << k;
      }
    }
  });
}

TEST(Sampler, TopPKeepsTheFewestThatReachP) {
  for_random_rows([](const std::vector<float>& logits, std::mt19937&) {
    const auto order = ranking(logits);
    double total = 0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit));
    for (const float p : {0.0f, 0.1f, 0.5f, 0.9f, 0.999f}) {
      SamplingParams params = plain();
      params.top_p = p;
      const auto left = tokens_of(apply("top_p", params, logits));
      ASSERT_EQ(left, std::vector<int32_t>(order.begin(), order.begin() + left.size()));
      double before = 0;  // without the last one
      for (size_t i = 0; i + 1 < left.size(); ++i)
        before += std::exp(static_cast<double>(logits[left[i]])) / total;
      const double with = before + std::exp(static_cast<double>(logits[left.back()])) / total;
      if (left.size() > 1) {
        ASSERT_LT(before, p + 1e-9);
      }
      ASSERT_GT(with, p - 1e-9);
    }
  });
}

TEST(Sampler, MinPKeepsWhatIsLikelyEnough) {
  for_random_rows([](const std::vector<float>& logits, std::mt19937&) {
    const float best = *std::max_element(logits.begin(), logits.end());
    for (const float p : {0.0f, 0.01f, 0.05f, 0.5f, 1.0f}) {
      SamplingParams params = plain();
      params.min_p = p;
      const auto left = tokens_of(apply("min_p", params, logits));
      ASSERT_TRUE(std::is_sorted(left.begin(), left.end()));
      const std::set<int32_t> kept(left.begin(), left.end());
      for (size_t i = 0; i < logits.size(); ++i) {
        const double ratio = std::exp(static_cast<double>(logits[i]) - static_cast<double>(best));
        if (std::abs(ratio - p) > 1e-6) {
          ASSERT_EQ(kept.contains(static_cast<int32_t>(i)), ratio > p);
        }
      }
    }
  });
}

TEST(Sampler, PenaltiesFollowTheirFormula) {
  std::mt19937 random(4);
  const auto logits = random_logits(random, 200, false);
  SamplingParams params = plain();
  params.repeat_penalty = 1.3f;
  params.presence_penalty = 0.25f;
  params.frequency_penalty = 0.5f;
  std::vector<int32_t> recent(200), drawn(200);
  for (int32_t& count : recent) count = static_cast<int32_t>(random() % 4);
  for (int32_t& count : drawn) count = static_cast<int32_t>(random() % 4);
  const auto left = apply("penalties", params, logits, recent, drawn);
  ASSERT_EQ(left.size(), logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    float expected = logits[i];
    if (recent[i] > 0) expected = expected > 0 ? expected / 1.3f : expected * 1.3f;
    if (drawn[i] > 0) expected -= 0.25f + 0.5f * static_cast<float>(drawn[i]);
    EXPECT_NEAR(left[i].logit, expected, 1e-5) << i;
  }
}

/// The token that greedy sampling chooses under a penalty that rules out whatever was seen.
int32_t unseen(Sampler& sampler, size_t count) {
  std::vector<float> logits(count);
  for (size_t i = 0; i < count; ++i) logits[i] = -1 - static_cast<float>(i);
  return sampler.sample(logits);
}

TEST(Sampler, RepeatPenaltySeesTheLastTokensOfTheWindow) {
  SamplingParams params = greedy();
  params.repeat_penalty = 100;
  params.penalty_window = 3;
  Sampler sampler(params, 10);
  EXPECT_EQ(unseen(sampler, 10), 0);
  for (const int32_t token : {0, 1}) sampler.read(token);
  sampler.accept(1);
  EXPECT_EQ(unseen(sampler, 10), 2) << "tokens of a prompt count";
  sampler.accept(5);  // 1 1 5
  EXPECT_EQ(unseen(sampler, 10), 0);
  sampler.accept(0);  // 1 5 0
  EXPECT_EQ(unseen(sampler, 10), 2);
  sampler.accept(0);  // 5 0 0
  EXPECT_EQ(unseen(sampler, 10), 1);

  params.penalty_window = -1;
  Sampler all(params, 10);
  for (int32_t token = 0; token < 9; ++token) all.accept(token);
  EXPECT_EQ(unseen(all, 10), 9);

  params.penalty_window = 0;
  Sampler none(params, 10);
  none.accept(0);
  EXPECT_EQ(unseen(none, 10), 0);
}

// What each penalty counts, from lists of all tokens: a repeated one's among the last seven, the prompt's
// too; the others' all that were drawn, and no other.
TEST(Sampler, PenaltiesCountLikeListsOfTheTokens) {
  for (const float repeat : {1.0f, 1.5f}) {
    for (const int32_t window : {7, 0, -1}) {
      SamplingParams params = greedy();
      params.repeat_penalty = repeat;
      params.presence_penalty = 0.5f;
      params.frequency_penalty = 0.015625f;
      params.penalty_window = window;
      Sampler sampler(params, 5);
      std::vector<int32_t> all, drawn;
      std::mt19937 random(8);
      for (int i = 0; i < 20; ++i) sampler.read(all.emplace_back(static_cast<int32_t>(random() % 5)));
      for (int i = 0; i < 300; ++i) {
        std::vector<float> logits(5), expected(5);
        for (size_t t = 0; t < 5; ++t)
          expected[t] = logits[t] = 0.125f * static_cast<float>(random() % 16) - 1;
        const size_t recent = window < 0 ? all.size() : static_cast<size_t>(window);
        for (const int32_t t : std::set<int32_t>(all.end() - static_cast<int64_t>(recent), all.end()))
          expected[t] = expected[t] > 0 ? expected[t] / repeat : expected[t] * repeat;
        for (const int32_t t : std::set<int32_t>(drawn.begin(), drawn.end())) expected[t] -= 0.5f;
        for (const int32_t t : drawn) expected[t] -= 0.015625f;
        ASSERT_EQ(sampler.sample(logits), ranking(expected)[0]) << "token " << i;
        sampler.accept(drawn.emplace_back(all.emplace_back(static_cast<int32_t>(random() % 5))));
      }
    }
  }
}

TEST(Sampler, GreedyTakesTheHighestAndTheLowerIdOfATie) {
  Sampler sampler(greedy(), 5);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 3, 2, 0}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{0, 0, 0, 0, 0}), 0);
  EXPECT_EQ(sampler.sample(std::vector<float>{-5, -kInf, -4, kNan, -4}), 2);
  EXPECT_EQ(sampler.sample(std::vector<float>{kNan, 1, kInf, 2, kInf}), 2);
}

TEST(Sampler, RowsWithoutNumbersGiveADefinedToken) {
  for (const float temperature : {0.0f, 1.0f}) {
    for (const bool filters : {false, true}) {
      SamplingParams params = filters ? SamplingParams() : plain();
      params.temperature = temperature;
      params.presence_penalty = filters ? 1.0f : 0.0f;
      Sampler sampler(params, 100);
      EXPECT_EQ(sampler.sample(std::vector<float>(100, -kInf)), 0);
      EXPECT_EQ(sampler.sample(std::vector<float>(100, kNan)), 0);
      std::vector<float> one(100, -kInf);
      one[0] = kNan;
      one[73] = -1e30f;
      EXPECT_EQ(sampler.sample(one), 73);
      std::vector<float> infinite(100, 5.0f);
      infinite[41] = kInf;
      EXPECT_EQ(sampler.sample(infinite), 41);
    }
  }
}

TEST(Sampler, ExtremeTemperaturesStayDefined) {
  std::mt19937 random(6);
  const auto logits = random_logits(random, 1000, false);
  SamplingParams params = plain();
  params.temperature = 1e-38f;
  Sampler cold(params, 1000);
  EXPECT_EQ(cold.sample(logits), ranking(logits)[0]);
  params.temperature = 1000;
  Sampler hot(params, 1000);
  std::set<int32_t> drawn;
  for (int i = 0; i < 1000; ++i) drawn.insert(hot.sample(logits));
  EXPECT_GT(drawn.size(), 500u);
}

/// The 99.99% point of the chi-square distribution by Wilson and Hilferty's approximation.
double chi_square_limit(size_t freedom) {
  const double k = static_cast<double>(freedom), z = 3.72, a = 2 / (9 * k);
  return k * std::pow(1 - a + z * std::sqrt(a), 3);
}

/// Draws many tokens and compares with the probabilities that they should have; absent ones must not occur.
void expect_distribution(const SamplingParams& params, const std::vector<float>& logits,
                         const std::map<int32_t, double>& expected) {
  constexpr int kDraws = 200000;
  Sampler sampler(params, static_cast<int32_t>(logits.size()));
  std::map<int32_t, int> drawn;
  for (int i = 0; i < kDraws; ++i) ++drawn[sampler.sample(logits)];
  double chi_square = 0;
  for (const auto& [token, p] : expected) {
    const double mean = p * kDraws, off = drawn[token] - mean;
    chi_square += off * off / mean;
  }
  EXPECT_EQ(drawn.size(), expected.size());
  EXPECT_LT(chi_square, chi_square_limit(std::max<size_t>(1, expected.size() - 1)));
}

std::map<int32_t, double> softmax(const std::vector<float>& logits, const std::vector<int32_t>& tokens,
                                  double temperature) {
  std::map<int32_t, double> out;
  double total = 0;
  for (const int32_t token : tokens) total += out[token] = std::exp(logits[token] / temperature);
  for (auto& [token, p] : out) p /= total;
  return out;
}

TEST(Sampler, DrawsFollowTheSoftmax) {
  const std::vector<float> logits = {0.5f, -1, 2, 1.5f, -0.25f, 0, 1, -2};
  const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
  for (const float temperature : {0.5f, 1.0f, 1.7f}) {
    SamplingParams params = plain();
    params.temperature = temperature;
    params.seed = 99;
    expect_distribution(params, logits, softmax(logits, all, temperature));
    params.top_k = 4;
    expect_distribution(params, logits, softmax(logits, {2, 3, 6, 0}, temperature));
    params.top_k = 0;
    params.min_p = 0.3f;  // 2: 1, 3: 0.61, 6: 0.37, 0: 0.22
    expect_distribution(params, logits, softmax(logits, {2, 3, 6}, temperature));
    params.min_p = 0;
    params.top_p = 0.6f;  // 2: 0.39, 3: 0.24
    expect_distribution(params, logits, softmax(logits, {2, 3}, temperature));
  }
}

TEST(Sampler, TheSeedDecides) {
  std::mt19937 random(12);
  const auto logits = random_logits(random, 500, false);
  const auto draw = [&](uint64_t seed) {
    SamplingParams params;
    params.seed = seed;
    Sampler sampler(params, 500);
    std::vector<int32_t> tokens;
    tokens.reserve(100);
    for (int i = 0; i < 100; ++i) tokens.push_back(sampler.sample(logits));
    return tokens;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
  EXPECT_NE(draw(0), draw(uint64_t{1} << 63));
}

TEST(Sampler, TheGeneratorIsTheDocumentedOne) {
  // A uniform row of 2^20 tokens shows the upper 20 bits of xoshiro256** seeded by SplitMix64 from 0.
  SamplingParams params = plain();
  constexpr int32_t kCount = 1 << 20;
  Sampler sampler(params, kCount);
  const std::vector<float> logits(kCount, 0.0f);
  uint64_t state[4], seed = 0;
  for (uint64_t& word : state) {
    uint64_t z = seed += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    word = z ^ (z >> 31);
  }
  EXPECT_EQ(state[0], 0xE220A8397B1DCDAFu);  // SplitMix64's published first number
  const auto rotate = [](uint64_t x, int by) { return x << by | x >> (64 - by); };
  for (int i = 0; i < 5; ++i) {
    const uint64_t number = rotate(state[1] * 5, 7) * 9, shifted = state[1] << 17;
    state[2] ^= state[0], state[3] ^= state[1], state[1] ^= state[2], state[0] ^= state[3];
    state[2] ^= shifted, state[3] = rotate(state[3], 45);
    EXPECT_EQ(sampler.sample(logits), static_cast<int32_t>(number >> 44));
  }
}

TEST(Sampler, BadParametersAreNamed) {
  const auto message = [](void (*spoil)(SamplingParams&)) -> std::string {
    SamplingParams params;
    spoil(params);
    try {
      params.validate();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  using testing::HasSubstr;
  EXPECT_EQ(message([](SamplingParams&) {}), "no error");
  EXPECT_THAT(message([](SamplingParams& p) { p.temperature = -1; }),
              HasSubstr("temperature is -1, expected 0 to"));
  EXPECT_THAT(message([](SamplingParams& p) { p.temperature = kNan; }), HasSubstr("temperature is nan"));
  EXPECT_THAT(message([](SamplingParams& p) { p.temperature = kInf; }), HasSubstr("temperature is inf"));
  EXPECT_THAT(message([](SamplingParams& p) { p.top_k = -1; }), HasSubstr("top_k is -1"));
  EXPECT_THAT(message([](SamplingParams& p) { p.top_p = 1.5f; }), HasSubstr("top_p is 1.5"));
  EXPECT_THAT(message([](SamplingParams& p) { p.min_p = kNan; }), HasSubstr("min_p is nan"));
  EXPECT_THAT(message([](SamplingParams& p) { p.repeat_penalty = 0; }), HasSubstr("repeat_penalty is 0"));
  EXPECT_THAT(message([](SamplingParams& p) { p.presence_penalty = kNan; }), HasSubstr("presence_penalty"));
  EXPECT_THAT(message([](SamplingParams& p) { p.frequency_penalty = kInf; }), HasSubstr("frequency_penalty"));
  EXPECT_THAT(message([](SamplingParams& p) { p.penalty_window = -2; }), HasSubstr("penalty_window is -2"));
  EXPECT_THAT(message([](SamplingParams& p) { p.top_k = -1, p.top_p = -1; }),
              HasSubstr("sampling: 2 problems"));
  SamplingParams bad;
  bad.top_p = 2;
  EXPECT_THROW(Sampler(bad, 10), Error);
}

/// The same chain on a shorter row: only what is allowed, biased beforehand.
TEST(Sampler, MasksAndBiasesAreThoseOfAShorterRow) {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    constexpr size_t kCount = 300;
    const auto logits = random_logits(random, kCount, false);
    std::vector<uint32_t> allowed((kCount + 31) / 32);
    for (uint32_t& word : allowed) {  // a quarter of them
      word = random();
      word &= random();
    }
    SamplingParams params;
    params.seed = random();
    params.temperature = round % 5 == 0 ? 0 : 0.8f;
    params.top_k = round % 3 == 0 ? 0 : 40;
    params.logit_bias = {{3, 2.5f}, {17, -4.0f}, {40, -std::numeric_limits<float>::infinity()}};
    std::vector<float> expected = logits;
    expected[3] += 2.5f;
    expected[17] -= 4.0f;
    expected[40] = -std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < kCount; ++i)
      if ((allowed[i / 32] >> (i % 32) & 1) == 0) expected[i] = -std::numeric_limits<float>::infinity();
    SamplingParams without = params;
    without.logit_bias.clear();
    Sampler masked(params, static_cast<int32_t>(kCount)), plain_row(without, static_cast<int32_t>(kCount));
    for (int draw = 0; draw < 20; ++draw) {
      const int32_t token = masked.sample(logits, allowed);
      ASSERT_EQ(token, plain_row.sample(expected));
      ASSERT_NE(allowed[static_cast<size_t>(token) / 32] >> (token % 32) & 1, 0u);
    }
  }
}

TEST(Logprobs, AreTheLogSoftmaxSorted) {
  std::mt19937 random(5);
  for (const size_t count : {1u, 2u, 40u, 3000u}) {
    auto logits = random_logits(random, count, false);
    if (count > 2) logits[1] = NAN;
    if (count > 2) logits[count - 1] = logits[0];  // a tie
    double sum = 0;
    for (const float logit : logits) sum += std::isnan(logit) ? 0 : std::exp(static_cast<double>(logit));
    std::vector<int32_t> order;
    for (size_t i = 0; i < count; ++i)
      if (!std::isnan(logits[i])) order.push_back(static_cast<int32_t>(i));
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    std::vector<TokenLogprob> out;
    log_probabilities(logits, 0, 20, out);
    ASSERT_EQ(out.size(), 1 + std::min<size_t>(20, count));
    EXPECT_EQ(out[0].token, 0);
    EXPECT_NEAR(out[0].logprob, logits[0] - std::log(sum), 1e-5);
    for (size_t i = 1; i < out.size(); ++i) {
      EXPECT_EQ(out[i].token, order[i - 1]);
      EXPECT_NEAR(out[i].logprob, logits[static_cast<size_t>(order[i - 1])] - std::log(sum), 1e-5);
    }
    log_probabilities(logits, 0, 0, out);
    EXPECT_EQ(out.size(), 1u);
  }
}

TEST(Sampler, AFullVocabularyTakesWellUnderAMillisecond) {
  std::mt19937 random(3);
  const auto logits = random_logits(random, 154880, false);
  const auto time = [&](const char* name, const SamplingParams& params) {
    Sampler sampler(params, 154880);
    double us = 1e9;
    for (int i = 0; i < 30; ++i) {
      const int64_t start = now_ns();
      sampler.accept(sampler.sample(logits));
      us = std::min(us, static_cast<double>(now_ns() - start) * 1e-3);
    }
    std::printf("%s: %.0f us a token at best\n", name, us);
    EXPECT_LT(us, 100000) << name;  // the figure is for the reader; the bound catches the absurd
  };
  SamplingParams params;
  time("defaults", params);
  params.repeat_penalty = 1.1f;
  time("defaults and a penalty", params);
  time("greedy", greedy());
  SamplingParams wide = plain();
  time("plain softmax", wide);
  wide.top_p = 0.95f;
  time("top_p alone", wide);
}

/// A row's likeliest tokens as a device gives them, by sorting all of it.
std::vector<Candidate> likeliest_of(const std::vector<float>& logits) {
  std::vector<Candidate> list;
  for (const int32_t id : ranking(logits))
    if (logits[static_cast<size_t>(id)] > -kInf) list.push_back({logits[static_cast<size_t>(id)], id});
  list.resize(program::kMaxTopK, Candidate{});
  return list;
}

TEST(Sampler, DrawsFromTheLikeliestWhatItDrawsFromTheRow) {
  std::mt19937 random(5);
  for (const int32_t top_k : {1, 7, 40, 64}) {
    for (const float temperature : {0.0f, 0.7f, 1.5f}) {
      SamplingParams params;  // with top_p and min_p
      params.top_k = top_k, params.temperature = temperature, params.seed = random();
      Sampler by_row(params, 3000), by_list(params, 3000);
      ASSERT_TRUE(by_list.draws_from_top());
      for (int round = 0; round < 200; ++round) {
        auto logits = random_logits(random, 3000, round % 2 == 0);
        if (round % 20 == 7) std::fill(logits.begin() + 3, logits.end(), -kInf);
        if (round % 20 == 9) std::fill(logits.begin(), logits.end(), -kInf);
        ASSERT_EQ(by_list.sample(likeliest_of(logits)), by_row.sample(logits)) << round;
      }
    }
  }
}

TEST(Sampler, SaysHowItWillDraw) {
  std::mt19937 random(6);
  int near = 0;
  for (const int32_t top_k : {1, 7, 40, 64}) {
    for (const float temperature : {0.0f, 0.7f, 1.5f}) {
      SamplingParams params;  // with top_p and min_p
      params.top_k = top_k, params.temperature = temperature, params.seed = random();
      Sampler sampler(params, 3000);
      program::Draw expected = sampler.draw_after(0);
      for (int round = 0; round < 200; ++round) {
        auto logits = random_logits(random, 3000, round % 2 == 0);
        if (round % 20 == 7) std::fill(logits.begin() + 3, logits.end(), -kInf);
        if (round % 20 == 9) std::fill(logits.begin(), logits.end(), -kInf);
        const auto likeliest = likeliest_of(logits);
        const program::Draw how = sampler.draw_after(0);
        EXPECT_EQ(how.uniform, expected.uniform) << "it was said a token before";
        expected = sampler.draw_after(1);
        const test::ExactDraw exact = test::draw_exactly(likeliest, how);
        const int32_t token = sampler.sample(likeliest);
        near += exact.margin < 1e-6;
        if (exact.margin >= 1e-6) {
          ASSERT_EQ(token, exact.token) << round;
        }
      }
    }
  }
  EXPECT_LT(near, 10);
}

TEST(Sampler, WantsTheWholeRowWhereTheLikeliestAreNotEnough) {
  const auto enough = [](auto change, int32_t vocabulary = 3000) {
    SamplingParams params;
    change(params);
    return Sampler(params, vocabulary).draws_from_top();
  };
  EXPECT_TRUE(enough([](SamplingParams&) {}));
  EXPECT_FALSE(enough([](SamplingParams& p) { p.top_k = 0; }));
  EXPECT_FALSE(enough([](SamplingParams& p) { p.top_k = 65; }));
  EXPECT_FALSE(enough([](SamplingParams& p) { p.presence_penalty = 0.5f; }));
  EXPECT_FALSE(enough([](SamplingParams& p) { p.logit_bias = {{3, 1.0f}}; }));
  EXPECT_FALSE(enough([](SamplingParams&) {}, 100)) << "candidates of few tokens stay in the order of ids";
  EXPECT_TRUE(enough([](SamplingParams& p) { p.temperature = 0, p.top_k = 0; }, 100));
}

}  // namespace
}  // namespace sluice::engine
