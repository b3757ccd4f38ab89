// Nondeterministic automata: out of expressions, byte by byte.
#include "text/grammar/automaton.h"

#include <algorithm>
#include <array>

namespace sluice::text::grammar {

uint32_t Nfa::add_state() {
  budget_->spend(1, 4);
  return size_++;
}

void Nfa::add_edge(uint32_t from, Symbol first, Symbol last, uint32_t to, bool counts) {
  budget_->spend(1, 2 * sizeof(edges[0]));
  edges.push_back({from, {first, last, to, counts}});
}

void Nfa::add_call(uint32_t from, uint32_t rule, uint32_t to, bool counts) {
  budget_->spend(1, 2 * sizeof(calls[0]));
  calls.push_back({from, {rule, to, counts}});
}

void Nfa::add_epsilon(uint32_t from, uint32_t to, Place place) {
  budget_->spend(1, 2 * sizeof(epsilons[0]));
  epsilons.push_back({from, {to, place}});
}

uint32_t Nfa::append_bytes(std::string_view bytes, uint32_t from) {
  for (const char c : bytes) {
    const uint32_t to = add_state();
    const auto byte = static_cast<uint8_t>(c);
    add_edge(from, byte, byte, to);
    from = to;
  }
  return from;
}

uint32_t Nfa::append(const Expression& expression, uint32_t from) {
  switch (expression.kind) {
    case Expression::Kind::Characters: {
      const uint32_t to = add_state();
      append_characters(expression.characters, from, to);
      return to;
    }
    case Expression::Kind::Text: return append_bytes(expression.text, from);
    case Expression::Kind::Sequence:
      for (const ExpressionPtr& part : expression.parts) from = append(*part, from);
      return from;
    case Expression::Kind::Choice: {
      const uint32_t to = add_state();
      for (const ExpressionPtr& part : expression.parts) {
        const uint32_t begin = add_state();
        add_epsilon(from, begin);
        add_epsilon(append(*part, begin), to);
      }
      return to;
    }
    case Expression::Kind::Repeat: {
      const Expression& part = *expression.parts.front();
      for (int i = 0; i < expression.least; ++i) {
        budget_->spend(1);
        from = append(part, from);
      }
      const uint32_t end = add_state();
      if (expression.most == Expression::kForever) {
        const uint32_t loop = add_state();
        add_epsilon(from, loop);
        add_epsilon(append(part, loop), loop);
        add_epsilon(loop, end);
        return end;
      }
      for (int i = expression.least; i < expression.most; ++i) {
        add_epsilon(from, end);
        from = append(part, from);
      }
      add_epsilon(from, end);
      return end;
    }
    case Expression::Kind::Call: {
      const uint32_t to = add_state();
      add_call(from, static_cast<uint32_t>(expression.rule), to);
      return to;
    }
    case Expression::Kind::At: {
      const uint32_t to = add_state();
      add_epsilon(from, to, expression.place);
      return to;
    }
    case Expression::Kind::Both:
    case Expression::Kind::Except: break;
  }
  return grammar::append(*this, automaton(expression, *budget_), from);
}

namespace {

/// Ranges of characters to sequences of ranges of bytes; neighbours share their first bytes.
class Utf8Edges {
 public:
  Utf8Edges(Nfa& nfa, uint32_t from, uint32_t to) : nfa_(nfa), to_(to) { states_[0] = from; }

  // Cuts a range where the number of bytes changes, and then until all bytes but a common front run freely.
  void add(uint32_t first, uint32_t last) {
    for (const uint32_t border : {0x7Fu, 0x7FFu, 0xFFFFu}) {
      if (first > border || last <= border) continue;
      add(first, border);
      return add(border + 1, last);
    }
    for (int bytes = 1; bytes < 4; ++bytes) {
      const uint32_t mask = (1u << (6 * bytes)) - 1;
      if (first <= 0x7F || (first & ~mask) == (last & ~mask)) continue;
      if ((first & mask) != 0) {
        add(first, first | mask);
        return add((first | mask) + 1, last);
      }
      if ((last & mask) != mask) {
        add(first, (last & ~mask) - 1);
        return add(last & ~mask, last);
      }
    }
    std::string low, high;
    append_utf8(low, first);
    append_utf8(high, last);
    for (size_t i = 0; i < low.size(); ++i) {
      const auto begin = static_cast<uint8_t>(low[i]), end = static_cast<uint8_t>(high[i]);
      const bool is_last = i + 1 == low.size();
      if (!is_last && begin == end && i < shared_ && bytes_[i] == begin) continue;
      shared_ = !is_last && begin == end ? i + 1 : std::min(shared_, i);
      const uint32_t next = is_last ? to_ : nfa_.add_state();
      nfa_.add_edge(states_[i], begin, end, next);
      if (!is_last) states_[i + 1] = next, bytes_[i] = begin;
    }
  }

 private:
  Nfa& nfa_;
  uint32_t to_;
  std::array<uint32_t, 4> states_{};  ///< before each byte of the last range
  std::array<uint8_t, 4> bytes_{};
  size_t shared_ = 0;  ///< so many first bytes of it are single ones
};

}  // namespace

void Nfa::append_characters(const CharacterSet& set, uint32_t from, uint32_t to) {
  Utf8Edges utf8(*this, from, to);
  for (const auto& [first, last] : set.ranges()) utf8.add(first, last);
}

uint32_t append(Nfa& nfa, const Dfa& dfa, uint32_t from) {
  const uint32_t end = nfa.add_state();
  if (dfa.empty()) return end;
  const uint32_t base = nfa.size();
  for (size_t i = 0; i < dfa.states.size(); ++i) nfa.add_state();
  for (uint32_t i = 0; i < dfa.states.size(); ++i) {
    for (const Edge& edge : dfa.edges_of(i))
      nfa.add_edge(base + i, edge.first, edge.last, base + edge.target, edge.counts);
    if (dfa.states[i].accepting) nfa.add_epsilon(base + i, end);
  }
  nfa.add_epsilon(from, base);
  return end;
}

}  // namespace sluice::text::grammar
