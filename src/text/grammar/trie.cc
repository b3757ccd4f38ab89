#include "text/grammar/trie.h"

#include <algorithm>
#include <functional>

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

// Depth first: a node of the new tree stands for several of this one, whose children of a kind are the next.
std::optional<Trie> Trie::merged(const ByteClasses& classes, uint32_t most) const {
  struct Group {
    size_t begin, end;  ///< in `members`
    uint16_t depth;
    uint8_t byte;
  };
  Trie out;
  out.nodes_.clear();
  std::vector<uint32_t> members, path;  // path: the nodes of `out` that are not at their end
  std::vector<Group> groups;
  std::vector<uint64_t> children;  // (byte, node)
  const auto add_children = [&](uint32_t from, uint32_t end) {
    for (uint32_t child = from; child < end; child = nodes_[child].end)
      if (classes.used[nodes_[child].byte])
        children.push_back(uint64_t{classes.first[nodes_[child].byte]} << 32 | child);
  };
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back())
      out.nodes_[path.back()].end = static_cast<uint32_t>(out.nodes_.size());
  };
  const auto open_children = [&](uint16_t depth) {
    std::sort(children.begin(), children.end(), std::greater<>());
    for (size_t i = 0; i < children.size();) {
      const auto byte = static_cast<uint8_t>(children[i] >> 32);
      const size_t begin = members.size();
      for (; i < children.size() && children[i] >> 32 == byte; ++i)
        members.push_back(static_cast<uint32_t>(children[i]));
      groups.push_back({begin, members.size(), depth, byte});
    }
    children.clear();
  };
  add_children(0, size());
  open_children(1);
  while (!groups.empty()) {
    const Group group = groups.back();
    groups.pop_back();
    if (out.nodes_.size() == most) return std::nullopt;
    close(group.depth - size_t{1});
    path.push_back(static_cast<uint32_t>(out.nodes_.size()));
    out.nodes_.push_back({0, static_cast<uint32_t>(out.tokens_.size()), group.depth, group.byte});
    for (size_t i = group.begin; i < group.end; ++i) {
      const auto tokens = tokens_at(members[i]);
      out.tokens_.insert(out.tokens_.end(), tokens.begin(), tokens.end());
      if (!tokens.empty()) out.longest_ = std::max<uint32_t>(out.longest_, group.depth);
      add_children(members[i] + 1, nodes_[members[i]].end);
    }
    members.resize(group.begin);
    open_children(group.depth + uint16_t{1});
  }
  close(0);
  out.nodes_.push_back(
      {static_cast<uint32_t>(out.nodes_.size()), static_cast<uint32_t>(out.tokens_.size()), 0, 0});
  out.find_wide();
  return out;
}

// From how many tokens on it is quicker to go over the bits of all.
void Trie::find_wide() {
  if (tokens_.empty()) return;
  const size_t words = static_cast<size_t>(*std::max_element(tokens_.begin(), tokens_.end())) / 32 + 1;
  for (uint32_t at = 0; at < size(); ++at) {
    const auto tokens = tokens_at(at);
    if (tokens.size() < words / 4) continue;
    std::vector<uint32_t>& bits = wide_[at];
    bits.resize(words);
    for (const int32_t token : tokens) bits[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
  }
}

void Trie::set_tokens(uint32_t at, std::span<uint32_t> bits) const {
  const auto tokens = tokens_at(at);
  if (const auto wide = tokens.size() > 8 ? wide_.find(at) : wide_.end(); wide != wide_.end()) {
    for (size_t i = 0; i < wide->second.size(); ++i) bits[i] |= wide->second[i];
    return;
  }
  for (const int32_t token : tokens) bits[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
}

size_t Trie::bytes() const {
  size_t bytes = nodes_.size() * sizeof(Node) + tokens_.size() * sizeof(int32_t);
  for (const auto& [at, bits] : wide_) bytes += bits.size() * sizeof(uint32_t) + 64;
  return bytes;
}

}  // namespace sluice::text::grammar
