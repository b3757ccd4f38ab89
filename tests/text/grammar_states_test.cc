// Every state that small random schemas and grammars can reach, each once: it leads on, and to an end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "text/constraint.h"
#include "text/grammar/follower.h"
#include "text/grammar/gbnf.h"
#include "text/grammar/machine.h"
#include "text/grammar/schema.h"
#include "text/json_model.h"
#include "text/random_grammars.h"
#include "text/support.h"

namespace sluice::text::grammar {
namespace {

using testing::HasSubstr;

/// The states of a grammar, breadth first, up to a limit. Bytes that no edge tells apart count as one.
class States {
 public:
  States(const std::shared_ptr<const Grammar>& grammar, size_t most) : machine_(grammar), most_(most) {
    std::set<uint32_t> bytes;
    for (const Edge& edge : grammar->edges) bytes.insert({edge.first, edge.last + 1u});
    add(machine_.start(), 0, 0);
    for (size_t i = 0; i < states_.size(); ++i) {
      bool leads = machine_.position(states_[i].position).may_end;
      for (const uint32_t byte : bytes) {
        if (byte > 255) continue;
        const uint32_t next = machine_.step(states_[i].position, static_cast<Symbol>(byte));
        if (!machine_.position(next).alive()) continue;
        leads = true;
        if (const auto to = add(next, i, static_cast<char>(byte)))
          ways_.push_back({i, *to, static_cast<char>(byte)});
      }
      if (!leads) dead_ends_.push_back(i);
    }
    find_ends();
  }

  size_t size() const { return states_.size(); }
  bool all() const { return all_; }
  /// States from which nothing follows; of all states, those from which no end can be reached, too.
  const std::vector<size_t>& dead_ends() const { return dead_ends_; }
  std::string text_to(size_t state) const {
    std::string text;
    for (; state != 0; state = states_[state].before) text.insert(text.begin(), states_[state].byte);
    return text;
  }
  /// The shortest text that a state is on the way of.
  std::string text_through(size_t state) const {
    std::string text = text_to(state);
    for (; states_[state].next != state; state = states_[state].next) text += states_[state].next_byte;
    return text;
  }

 private:
  struct State {
    uint32_t position;
    size_t before;
    char byte;
    size_t next = SIZE_MAX;  ///< nearer to an end; an end: itself
    char next_byte = 0;
  };

  struct Way {
    size_t from, to;
    char byte;
  };

  std::optional<size_t> add(uint32_t position, size_t before, char byte) {
    if (const auto known = by_position_.find(position); known != by_position_.end()) return known->second;
    if (states_.size() == most_) return all_ = false, std::nullopt;
    by_position_[position] = states_.size();
    states_.push_back({position, before, byte});
    return states_.size() - 1;
  }

  void find_ends() {
    std::vector<std::vector<Way>> into(states_.size());
    for (const Way& way : ways_) into[way.to].push_back(way);
    std::vector<size_t> work;
    for (size_t i = 0; i < states_.size(); ++i)
      if (machine_.position(states_[i].position).may_end) states_[i].next = i, work.push_back(i);
    for (size_t done = 0; done < work.size(); ++done) {
      for (const Way& way : into[work[done]]) {
        State& state = states_[way.from];
        if (state.next != SIZE_MAX) continue;
        state.next = way.to;
        state.next_byte = way.byte;
        work.push_back(way.from);
      }
    }
    for (size_t i = 0; all_ && i < states_.size(); ++i)
      if (states_[i].next == SIZE_MAX) dead_ends_.push_back(i);
  }

  Machine machine_;
  size_t most_;
  bool all_ = true;
  std::vector<State> states_;
  std::vector<Way> ways_;
  std::unordered_map<uint32_t, size_t> by_position_;
  std::vector<size_t> dead_ends_;
};

TEST(GrammarStates, OfSchemasAllLeadToADocument) {
  RandomSchemas schemas(48);
  size_t whole = 0, states_seen = 0;
  std::string rows;
  for (int i = 0; i < 250; ++i) {
    const Json json = schemas.make(2);
    Budget budget;
    GrammarBuilder builder(budget);
    JsonRules rules(builder, JsonStringKind::Any);
    std::shared_ptr<const Grammar> grammar;
    try {
      rules.prepare();
      const uint32_t root = SchemaCompiler(json, rules, {}).rule();
      grammar = std::make_shared<const Grammar>(builder.finish(root));
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::AnyOf(HasSubstr("nothing can match"), HasSubstr("inProperties")))
          << json;
      continue;
    }
    const States states(grammar, 12'000);
    states_seen += states.size();
    whole += states.all() ? 1 : 0;
    for (const size_t dead : states.dead_ends()) ADD_FAILURE() << json << " behind " << states.text_to(dead);
    if (HasFailure()) return;
    for (size_t k = 0; states.all() && k < states.size(); k += 1 + states.size() / 12)
      rows += Json{{"schema", json}, {"text", states.text_through(k)}}.dump() + "\n";
  }
  fmt::print("{} states, {} schemas to the last one\n", states_seen, whole);
  EXPECT_GE(whole, 150u);
  const TemporaryFile file(rows);
  const std::vector<std::string> verdicts = python_lines("schema_oracle.py", "validate " + file.path());
  EXPECT_GE(verdicts.size(), 1500u);
  for (const std::string& verdict : verdicts) EXPECT_EQ(verdict, "ok");
}

TEST(GrammarStates, OfGrammarsAllLeadToAnEnd) {
  std::mt19937 random(49);
  size_t whole = 0, states_seen = 0;
  for (int i = 0; i < 250; ++i) {
    const std::string text = random_gbnf(random);
    Budget budget;
    GrammarBuilder builder(budget);
    std::shared_ptr<const Grammar> grammar;
    try {
      const uint32_t root = add_gbnf(text, builder);
      grammar = std::make_shared<const Grammar>(builder.finish(root));
    } catch (const Error&) {
      continue;
    }
    const States states(grammar, 3'000);
    states_seen += states.size();
    whole += states.all() ? 1 : 0;
    for (const size_t dead : states.dead_ends()) ADD_FAILURE() << text << " behind " << states.text_to(dead);
    if (HasFailure()) return;
  }
  fmt::print("{} states, {} grammars to the last one\n", states_seen, whole);
  EXPECT_GE(whole, 100u);
}

// Where more ways lead on than are followed, a mask, which is put together from parts, and the step over a
// token, which takes all ways at once, must not differ in those that they leave out.
TEST(GrammarStates, WhatAMaskAllowsIsAcceptedWhereWaysAreCut) {
  std::mt19937 random(50);
  std::vector<std::string> texts = {
      "root ::= ([a-z] [a-z !]{0,100} [a-z ]{1,3} (\"a\" [a-z !]{0,100} [a-z]?){0,6} \"\\n\"?){1,50}",
      "root ::= e\ne ::= [a-z] | f e | f \"x\" e | \"(\" e \")\"\nf ::= [a-z] | \"(\" f \")\" | [a-z] f"};
  while (texts.size() < 150) texts.push_back(random_gbnf(random));
  for (std::string& text : texts)  // many kinds of bytes: masks are put together from parts
    text.replace(0, 8, "root ::= \"efghijklmnopqrstuvwxyz\" | ");
  const auto vocabulary = json_model().vocabulary;
  std::vector<uint32_t> bits = json_model().words();
  int64_t cut = 0, ends = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    Budget budget;
    GrammarBuilder builder(budget);
    std::shared_ptr<CompiledGrammar> compiled;
    try {
      Grammar grammar = builder.finish(add_gbnf(texts[i], builder));
      grammar.most_ways = 1 + i % 5;
      compiled = std::make_shared<CompiledGrammar>(vocabulary, std::move(grammar));
    } catch (const Error&) {
      continue;
    }
    for (int walk = 0; walk < 12; ++walk) {
      std::unique_ptr<TokenConstraint> follower = std::make_unique<Follower>(compiled);
      for (int step = 0; step < 30; ++step) {
        follower->allowed(bits);
        std::vector<int32_t> choices;
        for (int32_t token = 0; token < json_model().tokenizer.size(); ++token)
          if (has(bits, token)) choices.push_back(token);
        ASSERT_FALSE(choices.empty()) << texts[i];
        const int32_t token = choices[random() % choices.size()];
        ASSERT_TRUE(follower->accept(token)) << texts[i];
        if (json_model().tokenizer.ends_generation(token)) {
          ++ends;
          break;
        }
        if (step % 7 == 3) follower = follower->clone();
      }
      cut += static_cast<Follower&>(*follower).has_cut() ? 1 : 0;
    }
  }
  EXPECT_GE(cut, 300);
  EXPECT_GE(ends, 300);
}

TEST(GrammarStates, RulesThatOnlyCallOthersLeadOn) {
  std::string text = "root ::= a0\n";
  for (int i = 0; i < 20'000; ++i) text += fmt::format("a{} ::= a{} [a-z]?\n", i, i + 1);
  const auto constraint = gbnf_constraint(text + "a20000 ::= \"x\"\n", json_model().place());
  std::vector<uint32_t> bits = json_model().words();
  constraint->allowed(bits);
  EXPECT_TRUE(std::ranges::any_of(bits, [](uint32_t word) { return word != 0; }));
}

}  // namespace
}  // namespace sluice::text::grammar
