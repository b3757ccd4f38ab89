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
  const std::span<const int32_t> came = tokens.subspan(known_);
  learn(came);
  known_ = tokens.size();
  text_.insert(text_.end(), came.begin(), came.end());
  if (place_ > 0) place_ += came.size();
  index();
  // The place of the last call comes first: of places that agree as well, it is the one being copied.
  size_t best = agreeing(place_), place = place_;
  for (size_t i = 0; i < kLengths.size(); ++i) {
    if (text_.size() < kLengths[i]) continue;
    const auto last = std::span(text_).last(kLengths[i]);
    const auto other = static_cast<size_t>(places_[i][slot(last, places_[i].size())]);
    if (const size_t agree = agreeing(other); agree > best) best = agree, place = other;
  }
  count_ = 0;
  if (best < kLengths.front()) return;
  place_ = place;
  agree_ = best;
  for (; count_ < kMostTokens; ++count_) {
    const auto i = static_cast<size_t>(count_);
    // What is found behind the text's own end is a repetition of what was found.
    found_[i] = place + i < text_.size() ? text_[place + i] : found_[place + i - text_.size()];
    chances_[i] = rates_[rate_of(best + i)];
  }
}

// Whether what was found at the last call came.
void PromptLookup::learn(std::span<const int32_t> came) {
  constexpr double kWeight = 0.05;  // of one token
  for (size_t i = 0; i < std::min(found().size(), came.size()); ++i) {
    const bool right = came[i] == found_[i];
    double& rate = rates_[rate_of(agree_ + i)];
    rate += kWeight * ((right ? 1.0 : 0.0) - rate);
    if (!right) return;
  }
}

// Enters every place but the text's end.
void PromptLookup::index() {
  if (places_[0].size() < 2 * text_.size()) {
    const size_t slots = std::bit_ceil(std::max<size_t>(4 * text_.size(), 1024));
    for (std::vector<int32_t>& places : places_) places.assign(slots, 0);
    indexed_ = 0;
  }
  for (; indexed_ < text_.size(); ++indexed_) {
    for (size_t i = 0; i < kLengths.size(); ++i) {
      if (indexed_ < kLengths[i]) continue;
      const auto before = std::span(text_).subspan(indexed_ - kLengths[i], kLengths[i]);
      places_[i][slot(before, places_[i].size())] = static_cast<int32_t>(indexed_);
    }
  }
}

// How many tokens before a place are those at the text's end.
size_t PromptLookup::agreeing(size_t place) const {
  if (place >= text_.size()) return 0;
  size_t agree = 0;
  while (agree < std::min(place, kMostAgree) && text_[place - 1 - agree] == text_[text_.size() - 1 - agree])
    ++agree;
  return agree;
}

}  // namespace sluice::engine
