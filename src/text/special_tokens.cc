// A sorted list walked one byte at a time: after each byte, the strings that still fit are one range.
#include "text/special_tokens.h"

#include <algorithm>

namespace sluice::text {

SpecialTokens::SpecialTokens(std::vector<std::pair<std::string_view, int32_t>> tokens)
    : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const auto& token) { return token.first.empty(); });
  std::sort(tokens_.begin(), tokens_.end());
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), same), tokens_.end());
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    auto& range = by_first_[static_cast<uint8_t>(tokens_[i].first[0])];
    if (range.first == range.second) range.first = i;
    range.second = i + 1;
  }
}

SpecialTokens::Match SpecialTokens::find(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    const auto& range = by_first_[static_cast<uint8_t>(text[at])];
    if (range.first == range.second) continue;
    const Match match = longest_at(text, at);
    if (match.id >= 0) return match;
  }
  return {text.size(), 0, -1};
}

SpecialTokens::Match SpecialTokens::longest_at(std::string_view text, size_t at) const {
  Match best{at, 0, -1};
  auto [low, high] = by_first_[static_cast<uint8_t>(text[at])];
  for (size_t depth = 1; low < high; ++depth) {  // tokens_[low..high) agree with the text in `depth` bytes
    if (tokens_[low].first.size() == depth) best = {at, depth, tokens_[low++].second};
    if (at + depth == text.size() || low == high) break;
    const auto next = static_cast<uint8_t>(text[at + depth]);
    const auto byte = [&](const auto& token) { return static_cast<uint8_t>(token.first[depth]); };
    const auto first = tokens_.begin() + low, last = tokens_.begin() + high;
    const auto from = std::partition_point(first, last, [&](const auto& t) { return byte(t) < next; });
    const auto to = std::partition_point(from, last, [&](const auto& t) { return byte(t) == next; });
    low = static_cast<uint32_t>(from - tokens_.begin());
    high = static_cast<uint32_t>(to - tokens_.begin());
  }
  return best;
}

}  // namespace sluice::text
