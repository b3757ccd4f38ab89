// The bytes of a vocabulary's tokens as a tree, in the order in which a walk meets its nodes, so that a walk
// that finds a dead end jumps over all tokens that begin alike. Knows tokens as bytes only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/grammar/byte_classes.h"

namespace sluice::text::grammar {

class Trie {
 public:
  struct Node {
    uint32_t end;          ///< the node behind its descendants
    uint32_t first_token;  ///< its own tokens end where the next node's begin
    uint16_t depth;        ///< 1: a token's first byte
    uint8_t byte;
  };

  Trie() = default;
  /// Takes tokens' bytes and ids; empty ones and those of more than 65,535 bytes are left out.
  explicit Trie(std::vector<std::pair<std::string_view, int32_t>> tokens);

  /// The tree of a grammar that takes some bytes for the same: tokens that differ in nothing else are at one
  /// node, those with a byte that is never used are gone. None: it would not have at most `most` nodes.
  std::optional<Trie> merged(const ByteClasses& classes, uint32_t most) const;

  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()) - 1; }
  const Node& node(uint32_t at) const { return nodes_[at]; }
  bool has_children(uint32_t at) const { return nodes_[at].end > at + 1; }
  std::span<const int32_t> tokens_at(uint32_t at) const {
    return {tokens_.data() + nodes_[at].first_token, tokens_.data() + nodes_[at + 1].first_token};
  }
  /// Sets the bits of a node's tokens.
  void set_tokens(uint32_t at, std::span<uint32_t> bits) const;
  size_t bytes() const;
  uint32_t longest() const { return longest_; }  ///< bytes of the longest token

 private:
  void find_wide();

  std::vector<Node> nodes_ = {{0, 0, 0, 0}};  ///< and one behind the last, for its first_token
  std::vector<int32_t> tokens_;
  std::unordered_map<uint32_t, std::vector<uint32_t>> wide_;  ///< bits of nodes with very many tokens
  uint32_t longest_ = 0;
};

}  // namespace sluice::text::grammar
