// Bytes that a grammar takes for the same, the tree of a vocabulary merged by them, and masks found with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "text/constraint_support.h"
#include "text/grammar/byte_classes.h"
#include "text/grammar/trie.h"

namespace sluice::text {
namespace {

using namespace grammar;  // NOLINT: what this is about

TEST(ByteClasses, AreTheSameWhereEveryStateGoesOnTheSameWay) {
  ByteClassFinder finder;
  finder.add(0, {'a', 'z', 1, false});
  finder.add(0, {' ', ' ', 1, false});
  finder.add(0, {'.', '.', 1, true});  // counts
  finder.add(1, {'x', 'x', 2, false});
  finder.add(1, {kFirstTag, kFirstTag, 2, false});
  const ByteClasses classes = finder.classes();
  EXPECT_EQ(classes.first['z'], ' ');
  EXPECT_EQ(classes.first['a'], ' ');
  EXPECT_EQ(classes.first['x'], 'x');
  EXPECT_EQ(classes.first['.'], '.');
  EXPECT_EQ(classes.count(), 3);
  for (int byte = 0; byte < 256; ++byte)
    EXPECT_EQ(classes.used[byte], byte == ' ' || byte == '.' || (byte >= 'a' && byte <= 'z')) << byte;
}

TEST(ByteClasses, MergeATreeIntoTheOneOfTheTokensWrittenWithOneByteOfEach) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    ByteClasses classes;
    const uint32_t kinds = 1 + random() % 6;
    std::array<int, 8> first;
    first.fill(-1);
    for (int byte = 0; byte < 256; ++byte) {
      const uint32_t kind = random() % (kinds + 1);
      if (first[kind] < 0) first[kind] = byte;
      classes.first[byte] = static_cast<uint8_t>(first[kind]);
      classes.used[byte] = kind < kinds;
    }
    std::vector<std::string> texts(300);
    std::vector<std::pair<std::string_view, int32_t>> tokens;
    std::map<std::string, std::set<int32_t>> expected;  // by the text in first bytes
    for (int32_t id = 0; id < 300; ++id) {
      std::string written;
      bool used = true;
      for (uint32_t i = 0, size = random() % 6; i < size; ++i) {
        const auto byte = static_cast<uint8_t>(random());
        texts[id] += static_cast<char>(byte);
        written += static_cast<char>(classes.first[byte]);
        used = used && classes.used[byte];
      }
      tokens.emplace_back(texts[id], id);
      if (used && !texts[id].empty()) expected[written].insert(id);
    }
    const Trie whole(tokens);
    const std::optional<Trie> merged = whole.merged(classes, UINT32_MAX);
    ASSERT_TRUE(merged);
    std::map<std::string, std::set<int32_t>> found;
    std::string path;
    for (uint32_t at = 0; at < merged->size(); ++at) {
      const Trie::Node& node = merged->node(at);
      path.resize(node.depth - size_t{1});
      path += static_cast<char>(node.byte);
      std::vector<uint32_t> bits(10);
      merged->set_tokens(at, bits);
      for (int32_t id = 0; id < 300; ++id)
        if (has(bits, id)) found[path].insert(id);
      const auto here = merged->tokens_at(at);
      EXPECT_EQ(here.size(), found.contains(path) ? found[path].size() : 0);
      for (uint32_t below = at + 1; below < node.end; ++below)
        EXPECT_GT(merged->node(below).depth, node.depth);
      if (node.end < merged->size()) {
        EXPECT_LE(merged->node(node.end).depth, node.depth);
      }
    }
    EXPECT_EQ(found, expected);
    EXPECT_FALSE(whole.merged(classes, merged->size() - 1)) << "more nodes than asked for";
  }
}

// Of ambiguous grammars, whose ways share frames and hold each other's, too.
TEST(ByteClasses, MasksFoundByThemAreThoseThatAcceptKeeps) {
  const Model& model = json_model();
  std::mt19937 random(11);
  for (const char* grammar :
       {"root ::= p\np ::= [a-z ] | [a-z ] p [a-z ]", "root ::= s\ns ::= [a-z ] s? s? | \"(\" s \")\"",
        "root ::= (([a-z ]{1,5} [,. ]?){1,5} \"\\n\"?){1,50}",
        "root ::= a*\na ::= b c? | [a-z]\nb ::= c a? | [a-z ]\nc ::= [a-z ] b? | [a-z] a?",
        "root ::= x*\nx ::= a | b\na ::= [a-z ]+\nb ::= [a-z ]* [0-9\"{}:,é水]",
        "root ::= ([a-z ]{0,9} [a-z\":]{0,9} [a-z ]{0,9})*",
        "root ::= (e \"=\" e \"\\n\")+\ne ::= t ([-+*/] t)*\nt ::= [a-z]+ | [0-9]+ | \"(\" e \")\""}) {
    SCOPED_TRACE(grammar);
    const auto constraint = gbnf_constraint(grammar, model.place());
    for (int walk = 0; walk < 3; ++walk) {
      const auto follower = constraint->clone();
      std::string text;
      for (int step = 0; step < 8; ++step) {
        expect_exact_mask(model, *follower, text);
        std::vector<uint32_t> bits = model.words();
        follower->allowed(bits);
        std::vector<int32_t> choices;
        for (int32_t token = 0; token < model.tokenizer.size(); ++token)
          if (has(bits, token) && !model.tokenizer.ends_generation(token)) choices.push_back(token);
        if (choices.empty()) break;
        const int32_t token = choices[random() % choices.size()];
        text += model.tokenizer.bytes(token, true);
        ASSERT_TRUE(follower->accept(token));
      }
    }
  }
}

}  // namespace
}  // namespace sluice::text
