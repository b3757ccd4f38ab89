// The tree of cached prefixes, against a plain list of all of them.
#include "engine/prefix_tree.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace sluice::engine {
namespace {

constexpr int32_t kPages = 40;
using Tokens = std::vector<int32_t>;

/// So many tokens, of which only every 64th and a few others vary: many sequences begin alike.
Tokens random_tokens(std::mt19937& random, size_t count) {
  Tokens out(count, 7);
  for (size_t i = 0; i < count; ++i)
    if (i % 64 == 63 || i % 64 == 2 || i % 64 == 30) out[i] = static_cast<int32_t>(random() % 2);
  return out;
}

TEST(PrefixTree, FindsWhatAListOfPrefixesFinds) {
  std::mt19937 random(1);
  PrefixTree tree;
  std::map<Tokens, int32_t> whole;  // the oracle: from group and all tokens up to a page's end to the page
  std::vector<int32_t> free;
  for (int32_t page = 0; page < kPages; ++page) free.push_back(page);
  std::vector<int32_t> held;
  int found = 0, evicted = 0;
  for (int step = 0; step < 3000; ++step) {
    const Tokens tokens = random_tokens(random, 64 * (1 + random() % 5));
    const uint64_t group = random() % 4 == 0;
    const auto known_as = [&](size_t rows) {
      Tokens key = {static_cast<int32_t>(group)};
      key.insert(key.end(), tokens.begin(), tokens.begin() + static_cast<int64_t>(rows));
      return key;
    };
    std::vector<int32_t> chain, expected;
    tree.find(tokens, chain, group);
    for (size_t rows = 64; rows <= tokens.size(); rows += 64) {
      const auto at = whole.find(known_as(rows));
      if (at == whole.end()) break;
      expected.push_back(at->second);
    }
    ASSERT_EQ(chain, expected);
    found += chain.empty() ? 0 : 1;
    int32_t last = chain.empty() ? PrefixTree::kRoot : chain.back();
    tree.hold(last);
    for (size_t rows = chain.size() * 64; rows < tokens.size() && !free.empty(); rows += 64) {
      const int32_t page = free.back();
      last = tree.extend(last, std::span(tokens).subspan(rows, 64), page, group);
      ASSERT_EQ(last, page) << "nobody had it";
      free.pop_back();
      whole[known_as(rows + 64)] = page;
    }
    held.push_back(last);
    while (held.size() > 3 || (free.empty() && !held.empty())) {
      const size_t i = random() % held.size();
      tree.release(held[i]);
      held.erase(held.begin() + static_cast<int64_t>(i));
    }
    tree.check(held);
    for (int i = 0; free.size() < 5 && i < 10; ++i) {
      const int64_t unused = tree.unused();
      const int32_t page = tree.evict();
      ASSERT_EQ(page == PrefixTree::kRoot, unused == 0) << "whatever nobody holds can be evicted";
      if (page == PrefixTree::kRoot) break;
      ++evicted;
      free.push_back(page);
      const auto at =
          std::find_if(whole.begin(), whole.end(), [page](const auto& x) { return x.second == page; });
      ASSERT_NE(at, whole.end());
      for (const auto& [other, unused_page] : whole)  // a leaf: nothing goes on from it
        ASSERT_FALSE(other.size() > at->first.size() &&
                     std::equal(at->first.begin(), at->first.end(), other.begin()));
      whole.erase(at);
    }
    tree.check(held);
  }
  EXPECT_GT(found, 500);
  EXPECT_GT(evicted, 500);
}

TEST(PrefixTree, EvictsWhatWasReleasedLongestAgo) {
  PrefixTree tree;
  const Tokens a(64, 1), b(64, 2), c(64, 3);
  int32_t page = 0;
  for (const Tokens* tokens : {&a, &b, &c}) tree.release(tree.extend(PrefixTree::kRoot, *tokens, page++));
  tree.hold(0);
  tree.hold(tree.extend(0, b, 3));
  tree.release(3);  // its own hold
  EXPECT_EQ(tree.evict(), 1);
  tree.release(3);  // the one that extend() moved down
  EXPECT_EQ(tree.evict(), 2);
  EXPECT_EQ(tree.evict(), 3);
  EXPECT_EQ(tree.evict(), 0) << "above 3, so it goes after it";
  EXPECT_EQ(tree.evict(), PrefixTree::kRoot);
}

TEST(PrefixTree, ASecondPageWithTheSameTokensStaysTheCallers) {
  PrefixTree tree;
  const Tokens tokens(64, 1);
  EXPECT_EQ(tree.extend(PrefixTree::kRoot, tokens, 2), 2);
  EXPECT_EQ(tree.extend(PrefixTree::kRoot, tokens, 3), 2);
  const std::vector<int32_t> held = {2, 2};
  tree.check(held);
  EXPECT_EQ(tree.unused(), 0);
}

TEST(PrefixTree, EndsOfSequencesAreTakenOutWhereTheyServe) {
  PrefixTree tree;
  Tokens tail(10, 5);
  EXPECT_EQ(tree.add_leaf(PrefixTree::kRoot, tail, 0), PrefixTree::kRoot);
  EXPECT_EQ(tree.add_leaf(PrefixTree::kRoot, std::span(tail).first(8), 1), 1)
      << "its tokens are there already";
  tail.push_back(6);
  EXPECT_EQ(tree.add_leaf(PrefixTree::kRoot, tail, 1), 0) << "the shorter one is not needed any more";
  EXPECT_EQ(tree.size(), 1);
  Tokens wanted(40, 5);
  wanted[4] = 9;
  EXPECT_FALSE(tree.take_leaf(PrefixTree::kRoot, wanted)) << "4 of its 11 rows would serve";
  EXPECT_TRUE(tree.take_leaf(PrefixTree::kRoot, std::span(wanted).first(4))) << "all that is wanted";
  EXPECT_EQ(tree.size(), 0);

  EXPECT_EQ(tree.add_leaf(PrefixTree::kRoot, tail, 1), PrefixTree::kRoot);
  tail[6] = 9;
  const auto taken = tree.take_leaf(PrefixTree::kRoot, tail);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->page, 1);
  EXPECT_EQ(taken->rows, 6);

  // A whole page that somebody holds, or that others lie under, is nobody's to take.
  const Tokens whole(64, 3);
  EXPECT_EQ(tree.extend(PrefixTree::kRoot, whole, 4), 4);
  EXPECT_FALSE(tree.take_leaf(PrefixTree::kRoot, std::span(whole).first(63)));
  EXPECT_EQ(tree.add_leaf(4, tail, 5), PrefixTree::kRoot);
  tree.release(4);
  EXPECT_FALSE(tree.take_leaf(PrefixTree::kRoot, std::span(whole).first(63)));
  EXPECT_EQ(tree.evict(), 5);
  EXPECT_TRUE(tree.take_leaf(PrefixTree::kRoot, std::span(whole).first(63)));
}

TEST(PrefixTree, EndsAreTheirGroupsAlone) {
  PrefixTree tree;
  const Tokens tail(10, 5);
  EXPECT_EQ(tree.add_leaf(PrefixTree::kRoot, tail, 0, 1), PrefixTree::kRoot);
  EXPECT_EQ(tree.add_leaf(PrefixTree::kRoot, tail, 1, 2), PrefixTree::kRoot) << "not there for this group";
  EXPECT_EQ(tree.size(), 2);
  EXPECT_FALSE(tree.take_leaf(PrefixTree::kRoot, tail, 3));
  EXPECT_FALSE(tree.take_leaf(PrefixTree::kRoot, tail));
  EXPECT_EQ(tree.take_leaf(PrefixTree::kRoot, tail, 2)->page, 1);
  EXPECT_FALSE(tree.take_leaf(PrefixTree::kRoot, tail, 2));
  EXPECT_EQ(tree.take_leaf(PrefixTree::kRoot, tail, 1)->page, 0);
}

}  // namespace
}  // namespace sluice::engine
