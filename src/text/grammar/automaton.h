// Finite automata over bytes, with calls of rules as further symbols: made nondeterministic, then
// determinised, trimmed and combined. Knows how characters become bytes; what rules mean is not its business.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "text/grammar/budget.h"
#include "text/grammar/expression.h"

namespace sluice::text::grammar {

/// Bytes are 0 to 255; above stand control tokens that a grammar names (tags that are one token).
using Symbol = uint16_t;
inline constexpr Symbol kFirstTag = 256;

/// Each activation of a rule has a counter; edges that `count` add one to it. How many a rule may and must
/// have in the end is said by the rule, not here.
struct Edge {
  Symbol first, last;
  uint32_t target;
  bool counts;
};

struct CallEdge {
  uint32_t rule, target;
  bool counts;
};

/// Lists by state, one after the other in one vector.
template <typename T>
struct Rows {
  std::vector<uint32_t> begins = {0};
  std::vector<T> items;

  Rows() = default;
  /// Of pairs (state, item) in any order.
  Rows(const std::vector<std::pair<uint32_t, T>>& pairs, size_t states) : begins(states + 1) {
    for (const auto& [state, item] : pairs) ++begins[state + 1];
    for (size_t i = 0; i < states; ++i) begins[i + 1] += begins[i];
    items.resize(pairs.size());
    std::vector<uint32_t> next(begins.begin(), begins.end() - 1);
    for (const auto& [state, item] : pairs) items[next[state]++] = item;
  }
  std::span<const T> operator[](uint32_t state) const {
    return {items.data() + begins[state], items.data() + begins[state + 1]};
  }
};

class Nfa {
 public:
  struct Epsilon {
    uint32_t target;
    Place place;  ///< where alone it may be gone
  };

  explicit Nfa(Budget& budget) : budget_(&budget) {}

  uint32_t add_state();
  void add_edge(uint32_t from, Symbol first, Symbol last, uint32_t to, bool counts = false);
  void add_call(uint32_t from, uint32_t rule, uint32_t to, bool counts = false);
  void add_epsilon(uint32_t from, uint32_t to, Place place = Place::Anywhere);
  /// Adds what the expression matches behind `from`; returns the state behind it.
  uint32_t append(const Expression& expression, uint32_t from);
  /// The bytes one after the other.
  uint32_t append_bytes(std::string_view bytes, uint32_t from);

  uint32_t size() const { return size_; }
  Budget& budget() const { return *budget_; }

  // By the state that they leave.
  std::vector<std::pair<uint32_t, Edge>> edges;
  std::vector<std::pair<uint32_t, CallEdge>> calls;
  std::vector<std::pair<uint32_t, Epsilon>> epsilons;
  uint32_t accepting = 0;  ///< 0 is the start

 private:
  void append_characters(const CharacterSet& set, uint32_t from, uint32_t to);

  uint32_t size_ = 0;
  Budget* budget_;
};

struct Dfa {
  struct State {
    uint32_t first_edge, last_edge;  ///< [first, last) in edges, which are in the order of states
    uint32_t first_call, last_call;
    bool accepting = false;
  };
  std::vector<State> states;  ///< 0 is the start; none: matches nothing
  std::vector<Edge> edges;    ///< of a state by counts, then by symbols; those of equal counts do not overlap
  std::vector<CallEdge> calls;

  std::span<const Edge> edges_of(uint32_t state) const {
    return {edges.data() + states[state].first_edge, edges.data() + states[state].last_edge};
  }
  std::span<const CallEdge> calls_of(uint32_t state) const {
    return {calls.data() + states[state].first_call, calls.data() + states[state].last_call};
  }
  bool empty() const { return states.empty(); }
  /// Begins the next state; edges and calls added from now on are its own.
  void add_state(bool accepting);
  void add_edge(Symbol first, Symbol last, uint32_t target, bool counts = false);
  void add_call(uint32_t rule, uint32_t target, bool counts);
  bool matches(std::string_view bytes) const;  ///< of one without calls
};

/// The automaton with one way for each symbol. States from which none accepts remain (trim).
Dfa determinise(const Nfa& nfa);
/// An expression's automaton, trimmed. It must hold no calls.
Dfa automaton(const Expression& expression, Budget& budget);
/// The automaton of some texts, in time that grows with their length alone.
Dfa text_set(std::vector<std::string_view> texts, Budget& budget);

/// What both match, or what the first one matches and the second does not; trimmed. No calls, no counting.
Dfa intersection(const Dfa& left, const Dfa& right, Budget& budget);
Dfa difference(const Dfa& left, const Dfa& right, Budget& budget);
/// Takes away the states from which nothing accepts. No calls.
void trim(Dfa& dfa);

// Of automata that match whole characters in UTF-8:
/// The same texts as the inside of JSON strings, escaped where JSON must be, in the shortest way.
Dfa json_written(const Dfa& dfa, Budget& budget);
/// With the first byte of each character counting; `written`: of an automaton that json_written() made.
Dfa with_counts(const Dfa& dfa, bool written, Budget& budget);
/// Between quotes.
Dfa quoted(const Dfa& dfa, Budget& budget);

/// Adds a Dfa behind `from`; returns the state behind it.
uint32_t append(Nfa& nfa, const Dfa& dfa, uint32_t from);

}  // namespace sluice::text::grammar
