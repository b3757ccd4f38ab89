#include "text/grammar/trie.h"

#include <algorithm>

namespace sluice::text::grammar {

Trie::Trie(std::vector<std::pair<std::string_view, int32_t>> tokens) {
  std::erase_if(tokens,
                [](const auto& token) { return token.first.empty() || token.first.size() > UINT16_MAX; });
  std::sort(tokens.begin(), tokens.end());
  nodes_.clear();
  std::vector<uint32_t> path;  ///< the nodes of the last token
  std::string_view last;
  for (const auto& [bytes, id] : tokens) {
    const auto [differs, unused] = std::mismatch(bytes.begin(), bytes.end(), last.begin(), last.end());
    const auto common = static_cast<size_t>(differs - bytes.begin());
    const auto here = static_cast<uint32_t>(nodes_.size());
    for (size_t i = common; i < path.size(); ++i) nodes_[path[i]].end = here;
    path.resize(common);
    for (size_t i = common; i < bytes.size(); ++i) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<uint32_t>(tokens_.size()), static_cast<uint16_t>(i + 1),
                        static_cast<uint8_t>(bytes[i])});
    }
    tokens_.push_back(id);
    longest_ = std::max(longest_, static_cast<uint32_t>(bytes.size()));
    last = bytes;
  }
  const auto end = static_cast<uint32_t>(nodes_.size());
  for (const uint32_t at : path) nodes_[at].end = end;
  nodes_.push_back({end, static_cast<uint32_t>(tokens_.size()), 0, 0});
}

}  // namespace sluice::text::grammar
