// Finite automata over bytes, with calls of rules as further symbols: made nondeterministic, then
// determinised, trimmed and combined. Knows how characters become bytes; what rules mean is not its business.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/grammar/budget.h"
#include "text/grammar/expression.h"

namespace sluice::text::grammar {

/// Bytes are 0 to 255; above stand control tokens that a grammar names (tags that are one token).
using Symbol = uint16_t;
inline constexpr Symbol kFirstTag = 256;

/// What an edge asks of the counter that each activation of a rule has, and does to it.
enum Guard : uint8_t {
  kCount = 1,     ///< only below the rule's most; adds one
  kIfRoom = 2,    ///< only below the rule's most
  kIfEnough = 4,  ///< only at the rule's least or above
};

struct Edge {
  Symbol first, last;
  uint32_t target;
  uint8_t guards;
};

struct CallEdge {
  uint32_t rule, target;
  uint8_t guards;
};

/// How the characters of an expression are written.
enum class Writing : uint8_t {
  Plain,       ///< as UTF-8
  JsonString,  ///< within a JSON string, escaped only where JSON must, and in the shortest way
};

class Nfa {
 public:
  explicit Nfa(Budget& budget) : budget_(&budget) {}

  uint32_t add_state();
  void add_edge(uint32_t from, Symbol first, Symbol last, uint32_t to, uint8_t guards = 0);
  void add_call(uint32_t from, uint32_t rule, uint32_t to, uint8_t guards = 0);
  void add_epsilon(uint32_t from, uint32_t to);
  /// Adds what the expression matches behind `from`; returns the state behind it.
  uint32_t append(const Expression& expression, uint32_t from, Writing writing = Writing::Plain);
  /// The bytes one after the other.
  uint32_t append_bytes(std::string_view bytes, uint32_t from, uint8_t first_guards = 0);

  struct State {
    std::vector<Edge> edges;
    std::vector<CallEdge> calls;
    std::vector<uint32_t> epsilons;
  };
  std::vector<State> states;  ///< 0 is the start
  uint32_t accepting = 0;
  Budget& budget() const { return *budget_; }

 private:
  void append_characters(const CharacterSet& set, uint32_t from, uint32_t to, Writing writing);
  void append_utf8(uint32_t first, uint32_t last, uint32_t from, uint32_t to);

  Budget* budget_;
};

struct Dfa {
  struct State {
    std::vector<Edge> edges;  ///< by guards, then by symbols; those of equal guards do not overlap
    std::vector<CallEdge> calls;
    bool accepting = false;
  };
  std::vector<State> states;  ///< 0 is the start; none: matches nothing

  bool matches(std::string_view bytes) const;  ///< of one without calls and guards
};

/// The automaton with one way for each symbol. States from which none accepts remain (trim).
Dfa determinise(const Nfa& nfa);
/// An expression's automaton, trimmed. It must hold no calls.
Dfa automaton(const Expression& expression, Writing writing, Budget& budget);

/// What both match, or what the first one matches and the second does not; trimmed. No calls, no guards.
Dfa intersection(const Dfa& left, const Dfa& right, Budget& budget);
Dfa difference(const Dfa& left, const Dfa& right, Budget& budget);
/// Takes away the states from which nothing accepts. No calls.
void trim(Dfa& dfa);

/// Adds a Dfa behind `from`; returns the state behind it.
uint32_t append(Nfa& nfa, const Dfa& dfa, uint32_t from);

}  // namespace sluice::text::grammar
