// What fuzz targets of constraints share: a small vocabulary, a budget, and a short walk in which masks and
// accept() agree and nothing leads nowhere.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "text/json_model.h"

namespace sluice::text {

/// A vocabulary of few pairs: what a mask costs grows with its tokens, what can go wrong does not.
inline const Model& fuzzed_model() {
  static const Model model(json_vocab(40).vocab());
  return model;
}

/// Where an answer of a constraint made of so many bytes begins.
inline AnswerPlace fuzzed_place(size_t size) {
  AnswerPlace place = fuzzed_model().place();
  // In proportion to its size, which makes a small input as likely to be cut off as a large one.
  if (size < 2'000) place.most_steps = 20'000 + 40 * static_cast<int64_t>(size);
  return place;
}

inline void walk(TokenConstraint& constraint, uint32_t seed) {
  const Model& model = fuzzed_model();
  std::vector<uint32_t> bits = model.words();
  std::vector<int32_t> choices;
  for (int step = 0; step < 16; ++step) {
    constraint.allowed(bits);
    choices.clear();
    for (size_t word = 0; word < bits.size(); ++word)
      for (uint32_t rest = bits[word]; rest != 0; rest &= rest - 1)
        choices.push_back(static_cast<int32_t>(32 * word) + std::countr_zero(rest));
    CHECK(!choices.empty(), "no token leads on");
    seed = seed * 1664525 + 1013904223;
    const int32_t token = choices[(seed >> 8) % choices.size()];
    CHECK(constraint.accept(token));
    if (model.tokenizer.ends_generation(token)) return;
  }
}

}  // namespace sluice::text
