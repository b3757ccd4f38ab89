#include "server/prompt_history.h"

#include <algorithm>
#include <utility>

namespace sluice::server {

PromptHistory::Nearest PromptHistory::nearest(const Owner& owner, const std::vector<int32_t>& prompt) const {
  std::deque<Text> texts;
  {
    const std::lock_guard lock(mutex_);
    texts = texts_;
  }
  Nearest out;
  for (const Text& text : texts) {
    if (text.owner != owner) continue;
    const auto parts = std::mismatch(prompt.begin(), prompt.end(), text.tokens->begin(), text.tokens->end());
    const auto common = static_cast<size_t>(parts.first - prompt.begin());
    if (common > 0 && common >= out.common) out = {text.tokens, common};
  }
  return out;
}

void PromptHistory::keep(const Owner& owner, std::vector<int32_t> tokens) {
  const std::lock_guard lock(mutex_);
  tokens_ += tokens.size();
  texts_.push_back({owner, std::make_shared<const std::vector<int32_t>>(std::move(tokens))});
  while (texts_.size() > 1 && (texts_.size() > kMostTexts || tokens_ > kMostTokens)) {
    tokens_ -= texts_.front().tokens->size();
    texts_.pop_front();
  }
}

}  // namespace sluice::server
