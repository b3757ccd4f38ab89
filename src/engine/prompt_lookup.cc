#include "engine/prompt_lookup.h"

#include <algorithm>
#include <bit>

namespace sluice::engine {

namespace {

size_t rate_of(size_t agreeing) {
  return agreeing < 4 ? 0 : agreeing < 6 ? 1 : agreeing < 10 ? 2 : agreeing < 20 ? 3 : 4;
}

/// Of some tokens, for a table of a power of two.
size_t slot(std::span<const int32_t> tokens, size_t slots) {
  uint64_t hash = 0;
  for (const int32_t token : tokens) {
    hash = (hash + static_cast<uint32_t>(token) + 1) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  return hash & (slots - 1);
}

}  // namespace

void PromptLookup::look(std::span<const int32_t> tokens) {
  learn(tokens);
  if (place_ > 0) place_ += tokens.size() - known_;
  known_ = tokens.size();
  index(tokens);
  // The place of the last call comes first: of places that agree as well, it is the one being copied.
  size_t best = agreeing(tokens, place_), place = place_;
  for (size_t i = 0; i < kLengths.size(); ++i) {
    if (tokens.size() < kLengths[i]) continue;
    const auto other = static_cast<size_t>(places_[i][slot(tokens.last(kLengths[i]), places_[i].size())]);
    if (const size_t agree = agreeing(tokens, other); agree > best) best = agree, place = other;
  }
  count_ = 0;
  if (best < kLengths.front()) return;
  place_ = place;
  agree_ = best;
  for (; count_ < kMostTokens; ++count_) {
    const auto i = static_cast<size_t>(count_);
    // What is found behind the sequence's own end is a repetition of what was found.
    found_[i] = place + i < tokens.size() ? tokens[place + i] : found_[place + i - tokens.size()];
    chances_[i] = rates_[rate_of(best + i)];
  }
}

// Whether what was found at the last call came.
void PromptLookup::learn(std::span<const int32_t> tokens) {
  constexpr double kWeight = 0.05;  // of one token
  for (size_t i = 0; i < found().size() && known_ + i < tokens.size(); ++i) {
    const bool right = tokens[known_ + i] == found_[i];
    double& rate = rates_[rate_of(agree_ + i)];
    rate += kWeight * ((right ? 1.0 : 0.0) - rate);
    if (!right) return;
  }
}

// Enters every place but the sequence's end.
void PromptLookup::index(std::span<const int32_t> tokens) {
  if (places_[0].size() < 2 * tokens.size()) {
    const size_t slots = std::bit_ceil(std::max<size_t>(4 * tokens.size(), 1024));
    for (std::vector<int32_t>& places : places_) places.assign(slots, 0);
    indexed_ = 0;
  }
  for (; indexed_ < tokens.size(); ++indexed_)
    for (size_t i = 0; i < kLengths.size(); ++i)
      if (indexed_ >= kLengths[i])
        places_[i][slot(tokens.subspan(indexed_ - kLengths[i], kLengths[i]), places_[i].size())] =
            static_cast<int32_t>(indexed_);
}

// How many tokens before a place are those before the sequence's end.
size_t PromptLookup::agreeing(std::span<const int32_t> tokens, size_t place) const {
  if (place >= tokens.size()) return 0;
  size_t agree = 0;
  while (agree < std::min(place, kMostAgree) &&
         tokens[place - 1 - agree] == tokens[tokens.size() - 1 - agree])
    ++agree;
  return agree;
}

}  // namespace sluice::engine
