// What is told of the prefix tree, against the tree: whoever follows the events knows which whole pages a
// prompt would find.
#include "engine/block_teller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace sluice::engine {
namespace {

using events::BlockEvent;
using program::kPageRows;
using Kind = BlockEvent::Kind;
using Tokens = std::vector<int32_t>;

/// A router: the tree as the events tell it.
struct Router : events::Sink {
  std::map<uint64_t, std::pair<std::optional<uint64_t>, Tokens>> blocks;
  int cleared = 0, removed = 0, stored = 0;

  void take(std::vector<BlockEvent> events) override {
    EXPECT_FALSE(events.empty());
    for (const BlockEvent& event : events) hear(event);
  }
  void hear(const BlockEvent& event) {
    if (event.kind == Kind::Cleared) {
      blocks.clear();
      ++cleared;
    }
    if (event.kind == Kind::Removed) {
      for (const uint64_t hash : event.hashes) {
        for (const auto& [child, block] : blocks) EXPECT_NE(block.first, hash) << "a block is behind it";
        EXPECT_EQ(blocks.erase(hash), 1u);
        ++removed;
      }
    }
    if (event.kind != Kind::Stored) return;
    ASSERT_EQ(event.tokens.size(), event.hashes.size() * kPageRows);
    std::optional<uint64_t> parent = event.parent;
    for (size_t i = 0; i < event.hashes.size(); ++i, ++stored) {
      EXPECT_TRUE(!parent || blocks.contains(*parent));
      const auto first = event.tokens.begin() + static_cast<int64_t>(i * kPageRows);
      EXPECT_TRUE(blocks.insert({event.hashes[i], {parent, Tokens(first, first + kPageRows)}}).second);
      parent = event.hashes[i];
    }
  }
  /// Whole blocks in which these tokens begin.
  int64_t found(const Tokens& tokens) const {
    std::optional<uint64_t> at;
    for (int64_t count = 0;; ++count) {
      if ((count + 1) * kPageRows > std::ssize(tokens)) return count;
      const auto first = tokens.begin() + count * kPageRows;
      const auto next = std::ranges::find_if(blocks, [&](const auto& block) {
        return block.second.first == at && std::equal(first, first + kPageRows, block.second.second.begin());
      });
      if (next == blocks.end()) return count;
      at = next->first;
    }
  }
};

/// Prompts that begin alike in many ways.
Tokens random_prompt(std::mt19937& random) {
  Tokens tokens;
  for (int page = 0; page < 4; ++page) {
    const auto words = static_cast<int32_t>(random() % 3);
    tokens.insert(tokens.end(), kPageRows, words);
  }
  tokens.resize(1 + random() % tokens.size());
  if (random() % 3 == 0) tokens.back() = 7;
  return tokens;
}

TEST(BlockTeller, WhoHearsItKnowsTheTree) {
  std::mt19937 random(1);
  KvCache cache(24);
  Router router;
  BlockTeller teller(router, cache);
  EXPECT_EQ(router.cleared, 1) << "whatever an earlier process had";
  std::deque<std::pair<SequencePages, Tokens>> open;
  for (int turn = 0; turn < 3000; ++turn) {
    if (open.size() == 4 || (!open.empty() && random() % 2 == 0)) {
      auto& [sequence, tokens] = open.front();
      cache.computed(sequence, tokens, std::ssize(tokens));
      if (random() % 8 == 0) cache.clear();  // beside those that run
      cache.close(sequence, tokens);
      open.pop_front();
    } else {
      Tokens tokens = random_prompt(random);
      SequencePages sequence = cache.open(tokens);
      ASSERT_TRUE(cache.grow(sequence, std::ssize(tokens)));
      const int64_t rows =
          sequence.rows + static_cast<int64_t>(random()) % (std::ssize(tokens) - sequence.rows);
      cache.computed(sequence, tokens, rows);
      open.emplace_back(std::move(sequence), std::move(tokens));
    }
    teller.flush();
    const Tokens asked = random_prompt(random);
    std::vector<int32_t> chain;
    cache.find(asked, chain, {});
    ASSERT_EQ(router.found(Tokens(asked.begin(), asked.end() - 1)), std::ssize(chain)) << "turn " << turn;
  }
  EXPECT_GT(router.removed, 100);
  EXPECT_GT(router.stored, router.removed);
  for (auto& [sequence, tokens] : open) cache.close(sequence, tokens);
  cache.clear();
  teller.flush();
  EXPECT_TRUE(router.blocks.empty());
  EXPECT_GT(router.cleared, 1);
}

TEST(BlockTeller, GroupsHaveBlocksOfTheirOwn) {
  KvCache cache(8);
  Router router;
  BlockTeller teller(router, cache);
  const Tokens tokens(kPageRows + 1, 5);
  for (const uint64_t group : {1, 2}) {
    SequencePages sequence = cache.open(tokens, {group, group});
    ASSERT_TRUE(cache.grow(sequence, std::ssize(tokens)));
    cache.computed(sequence, tokens, std::ssize(tokens));
    cache.close(sequence, tokens);
  }
  teller.flush();
  EXPECT_EQ(router.blocks.size(), 2u);
}

}  // namespace
}  // namespace sluice::engine
