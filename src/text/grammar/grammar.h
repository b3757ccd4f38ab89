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
#include "text/grammar/json_string.h"

namespace sluice::text::grammar {

inline constexpr uint32_t kNoLimit = UINT32_MAX;
/// A count as a limit: what is too large for one is none.
inline uint32_t limit(uint64_t count) { return count >= kNoLimit ? kNoLimit : static_cast<uint32_t>(count); }

struct Grammar {
  struct State {
    uint32_t first_edge, last_edge;  ///< [first, last) in edges
    uint32_t first_call, last_call;
    uint32_t rule;
    bool accepting;
  };
  struct Rule {
    uint32_t start;                       ///< its first state
    uint32_t least = 0, most = kNoLimit;  ///< for guards
    uint32_t order = 0;                   ///< a rule that another begins with has a higher one
    int string_kind = -1;                 ///< JsonStringKind of a JSON string; -1: another rule
  };
  std::vector<State> states;
  std::vector<Edge> edges;
  std::vector<CallEdge> calls;
  std::vector<Rule> rules;
  uint32_t root = 0;
  std::vector<int32_t> tags;  ///< tokens that are symbols kFirstTag, kFirstTag + 1, ...

  std::span<const Edge> edges_of(const State& state) const {
    return {edges.data() + state.first_edge, edges.data() + state.last_edge};
  }
  std::span<const CallEdge> calls_of(const State& state) const {
    return {calls.data() + state.first_call, calls.data() + state.last_call};
  }
  const Rule& rule_of(uint32_t state) const { return rules[states[state].rule]; }
};

class GrammarBuilder {
 public:
  explicit GrammarBuilder(Budget& budget) : budget_(budget) {}

  Budget& budget() { return budget_; }
  /// A rule to be defined later; `name` is for messages.
  uint32_t add_rule(std::string name);
  void define(uint32_t rule, Nfa nfa, uint32_t least = 0, uint32_t most = kNoLimit);
  /// The rule of an automaton without calls.
  uint32_t add_rule(std::string name, const Dfa& dfa);
  /// The rule of a JSON string of that many characters, with its quotes.
  uint32_t string_rule(uint32_t least, uint32_t most, JsonStringKind kind);
  /// The symbol of a token.
  Symbol tag(int32_t token);

  /// The finished grammar. Throws Error when nothing matches `root`, or when a rule can begin with itself.
  Grammar finish(uint32_t root);

 private:
  struct Rule {
    std::string name;
    std::unique_ptr<Nfa> nfa;
    Dfa dfa;
    uint32_t least = 0, most = kNoLimit;
    int string_kind = -1;
    bool productive = false;
    bool nullable = false;
  };
  void find_nullable();
  bool passes(const Rule& rule, uint8_t guards, bool counts) const;
  bool find_productive(Rule& rule);
  std::vector<bool> alive_states(const Rule& rule) const;
  void order_rules(Grammar& grammar) const;

  Budget& budget_;
  std::vector<Rule> rules_;
  std::map<std::tuple<uint32_t, uint32_t, JsonStringKind>, uint32_t> strings_;
  std::vector<int32_t> tags_;
};

}  // namespace sluice::text::grammar
