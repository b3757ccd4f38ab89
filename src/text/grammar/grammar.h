// A grammar made ready to be followed: rules, each an automaton over bytes and calls of rules, in flat
// tables. Knows neither JSON nor tokens, except that tags may be one symbol.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/byte_classes.h"
#include "text/grammar/json_string.h"
#include "text/grammar/reach.h"

namespace sluice::text::grammar {

struct Grammar {
  struct State {
    uint32_t first_edge, last_edge;  ///< [first, last) in edges
    uint32_t first_call, last_call;
    uint32_t rule;
    bool accepting;
  };
  struct Rule {
    static constexpr uint32_t kUncounted = UINT32_MAX;

    uint32_t start;                       ///< its first state
    uint32_t least = 0, most = kNoLimit;  ///< counts of an activation in the end
    uint32_t order = 0;                   ///< a rule that another begins with has a higher one
    int string_kind = -1;                 ///< JsonStringKind of a JSON string; -1: another rule
    uint32_t reach = kUncounted;          ///< of its first state in reach; kUncounted: counts mean nothing
    uint32_t far_shortest = 0, far_longest = 0;  ///< the largest limited numbers of its states' reach
  };
  std::vector<State> states;
  std::vector<Edge> edges;
  std::vector<CallEdge> calls;
  std::vector<Rule> rules;
  std::vector<Reach> reach;
  uint32_t root = 0;
  ByteClasses classes;
  std::vector<int32_t> tags;  ///< tokens that are symbols kFirstTag, kFirstTag + 1, ...
  /// That are followed at once: more than any sensible grammar has. What is beyond is not followed, which
  /// only makes fewer texts match; which ways these are depends on what was followed before.
  size_t most_ways = 256;

  std::span<const Edge> edges_of(const State& state) const {
    return {edges.data() + state.first_edge, edges.data() + state.last_edge};
  }
  std::span<const CallEdge> calls_of(const State& state) const {
    return {calls.data() + state.first_call, calls.data() + state.last_call};
  }
  const Rule& rule_of(uint32_t state) const { return rules[states[state].rule]; }
  /// Whether an activation of a rule that has counted so far can be completed from a state.
  bool leads(const Rule& rule, uint32_t state, uint32_t count) const {
    return rule.reach == Rule::kUncounted ||
           reach[rule.reach + (state - rule.start)].leads(count, rule.least, rule.most);
  }
  /// About the memory that it takes.
  size_t bytes() const {
    return states.size() * sizeof(State) + edges.size() * sizeof(Edge) + calls.size() * sizeof(CallEdge) +
           rules.size() * sizeof(Rule) + reach.size() * sizeof(Reach);
  }
};

class GrammarBuilder {
 public:
  explicit GrammarBuilder(Budget& budget) : budget_(&budget) {}

  Budget& budget() { return *budget_; }
  /// A rule to be defined later; `name` is for messages.
  uint32_t add_rule(std::string name);
  /// What it calls may match nothing; edges must not count.
  void define(uint32_t rule, Nfa nfa);
  /// The same at once: none of the rules that it calls matches nothing. Its counts must come to at least
  /// `least` and at most `most` in the end.
  void define_at_once(uint32_t rule, const Nfa& nfa, uint32_t least = 0, uint32_t most = kNoLimit);
  /// The rule of an automaton.
  uint32_t add_rule(std::string name, Dfa dfa, uint32_t least = 0, uint32_t most = kNoLimit);
  /// The rule that is another one, so many times.
  uint32_t repeat_rule(std::string name, uint32_t rule, uint32_t least, uint32_t most);
  /// The rule of a JSON string of that many characters, with its quotes.
  uint32_t string_rule(uint32_t least, uint32_t most, JsonStringKind kind);
  /// The symbol of a token.
  Symbol tag(int32_t token);
  uint32_t size() const { return static_cast<uint32_t>(rules_.size()); }
  /// Takes away what rules from this one on are; they match nothing then. Strings stay: others may share
  /// them.
  void forget(uint32_t from);

  /// The finished grammar. Throws Error when nothing matches `root`, or when a rule can begin with itself.
  Grammar finish(uint32_t root);

 private:
  static constexpr uint32_t kNoRule = UINT32_MAX;
  struct Rule {
    std::string name;
    std::unique_ptr<Nfa> nfa;
    Dfa dfa;
    uint32_t least = 0, most = kNoLimit;
    int string_kind = -1;
    uint32_t repeats = kNoRule;  ///< the rule that this one is, several times
    bool nullable = false;
    bool productive = false;
    bool impossible = false;  ///< counts make sure that nothing matches
    std::vector<Reach> reach;

    bool is_counted() const { return least > 0 || most != kNoLimit; }
  };
  void find_nullable();
  void pass_nullable();
  void find_productive();
  bool find_impossible(Rule& rule);
  Dfa alive_part(const Rule& rule) const;
  void order_rules(Grammar& grammar) const;

  Budget* budget_;
  std::vector<Rule> rules_;
  std::map<std::tuple<uint32_t, uint32_t, JsonStringKind>, uint32_t> strings_;
  std::vector<int32_t> tags_;
  std::vector<uint32_t> bases_;  ///< of rules' states among all
  std::vector<bool> alive_;      ///< by state among all: whether its rule can be completed
};

}  // namespace sluice::text::grammar
