#include "text/grammar/automaton.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace sluice::text::grammar {
namespace {

size_t encode(uint32_t character, uint8_t* out) {
  if (character < 0x80) return out[0] = static_cast<uint8_t>(character), 1;
  const size_t length = character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
  for (size_t i = length; i-- > 1; character >>= 6) out[i] = static_cast<uint8_t>(0x80 | (character & 0x3F));
  constexpr uint8_t kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  out[0] = static_cast<uint8_t>(kLead[length] | character);
  return length;
}

// How JSON writes a character that may not stand for itself in a string; empty: it may.
std::string json_escape(uint32_t character) {
  switch (character) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\b': return "\\b";
    case '\f': return "\\f";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: return character < 0x20 ? fmt::format("\\u{:04x}", character) : std::string();
  }
}

}  // namespace

uint32_t Nfa::add_state() {
  budget_->spend(1);
  states.emplace_back();
  return static_cast<uint32_t>(states.size() - 1);
}

void Nfa::add_edge(uint32_t from, Symbol first, Symbol last, uint32_t to, uint8_t guards) {
  budget_->spend(1);
  states[from].edges.push_back({first, last, to, guards});
}

void Nfa::add_call(uint32_t from, uint32_t rule, uint32_t to, uint8_t guards) {
  budget_->spend(1);
  states[from].calls.push_back({rule, to, guards});
}

void Nfa::add_epsilon(uint32_t from, uint32_t to) {
  budget_->spend(1);
  states[from].epsilons.push_back(to);
}

uint32_t Nfa::append_bytes(std::string_view bytes, uint32_t from, uint8_t first_guards) {
  for (const char c : bytes) {
    const uint32_t to = add_state();
    const auto byte = static_cast<uint8_t>(c);
    add_edge(from, byte, byte, to, std::exchange(first_guards, uint8_t{0}));
    from = to;
  }
  return from;
}

uint32_t Nfa::append(const Expression& expression, uint32_t from, Writing writing) {
  switch (expression.kind) {
    case Expression::Kind::Characters: {
      const uint32_t to = add_state();
      append_characters(expression.characters, from, to, writing);
      return to;
    }
    case Expression::Kind::Sequence:
      for (const ExpressionPtr& part : expression.parts) from = append(*part, from, writing);
      return from;
    case Expression::Kind::Choice: {
      const uint32_t to = add_state();
      for (const ExpressionPtr& part : expression.parts) {
        const uint32_t begin = add_state();
        add_epsilon(from, begin);
        add_epsilon(append(*part, begin, writing), to);
      }
      return to;
    }
    case Expression::Kind::Repeat: {
      const Expression& part = *expression.parts.front();
      for (int i = 0; i < expression.least; ++i) from = append(part, from, writing);
      const uint32_t end = add_state();
      if (expression.most == Expression::kForever) {
        const uint32_t loop = add_state();
        add_epsilon(from, loop);
        add_epsilon(append(part, loop, writing), loop);
        add_epsilon(loop, end);
        return end;
      }
      for (int i = expression.least; i < expression.most; ++i) {
        add_epsilon(from, end);
        from = append(part, from, writing);
      }
      add_epsilon(from, end);
      return end;
    }
    case Expression::Kind::Call: {
      const uint32_t to = add_state();
      add_call(from, static_cast<uint32_t>(expression.rule), to);
      return to;
    }
  }
  return from;
}

void Nfa::append_characters(const CharacterSet& set, uint32_t from, uint32_t to, Writing writing) {
  for (auto [first, last] : set.ranges()) {
    for (; writing == Writing::JsonString && first <= std::min<uint32_t>(last, '\\'); ++first) {
      const std::string escaped = json_escape(first);
      if (escaped.empty()) {
        append_utf8(first, first, from, to);
      } else {
        add_epsilon(append_bytes(escaped, from), to);
      }
    }
    if (first <= last) append_utf8(first, last, from, to);
  }
}

// Cuts a range where the number of bytes changes, and then until all bytes but a common front run freely.
void Nfa::append_utf8(uint32_t first, uint32_t last, uint32_t from, uint32_t to) {
  for (const uint32_t border : {0x7Fu, 0x7FFu, 0xFFFFu}) {
    if (first > border || last <= border) continue;
    append_utf8(first, border, from, to);
    return append_utf8(border + 1, last, from, to);
  }
  for (int bytes = 1; bytes < 4; ++bytes) {
    const uint32_t mask = (1u << (6 * bytes)) - 1;
    if (first <= 0x7F || (first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      append_utf8(first, first | mask, from, to);
      return append_utf8((first | mask) + 1, last, from, to);
    }
    if ((last & mask) != mask) {
      append_utf8(first, (last & ~mask) - 1, from, to);
      return append_utf8(last & ~mask, last, from, to);
    }
  }
  std::array<uint8_t, 4> low{}, high{};
  const size_t length = encode(first, low.data());
  encode(last, high.data());
  for (size_t i = 0; i < length; ++i) {
    const uint32_t next = i + 1 == length ? to : add_state();
    add_edge(from, low[i], high[i], next);
    from = next;
  }
}

namespace {

// The subset construction, one state at a time.
class Determiniser {
 public:
  explicit Determiniser(const Nfa& nfa) : nfa_(nfa) {}

  Dfa run() {
    find({0});
    for (uint32_t i = 0; i < sets_.size(); ++i) expand(i);
    return std::move(dfa_);
  }

 private:
  using Set = std::vector<uint32_t>;

  // The state of a set of states of the Nfa, closed over epsilons.
  uint32_t find(Set set) {
    std::vector<uint32_t> work = set;
    std::set<uint32_t> closed(set.begin(), set.end());
    while (!work.empty()) {
      const uint32_t at = work.back();
      work.pop_back();
      for (const uint32_t next : nfa_.states[at].epsilons)
        if (closed.insert(next).second) work.push_back(next);
    }
    set.clear();
    for (const uint32_t at : closed) {  // states of epsilons alone tell nothing
      const Nfa::State& state = nfa_.states[at];
      if (!state.edges.empty() || !state.calls.empty() || at == nfa_.accepting) set.push_back(at);
    }
    nfa_.budget().spend(static_cast<int64_t>(closed.size()) + 8);
    const auto [found, is_new] = ids_.emplace(std::move(set), static_cast<uint32_t>(sets_.size()));
    if (is_new) {
      sets_.push_back(&found->first);
      dfa_.states.emplace_back();
    }
    return found->second;
  }

  void expand(uint32_t id) {
    std::map<uint8_t, std::vector<Edge>> by_guards;
    std::map<std::pair<uint32_t, uint8_t>, Set> calls;
    for (const uint32_t at : *sets_[id]) {
      for (const Edge& edge : nfa_.states[at].edges) by_guards[edge.guards].push_back(edge);
      for (const CallEdge& call : nfa_.states[at].calls)
        calls[{call.rule, call.guards}].push_back(call.target);
      if (at == nfa_.accepting) dfa_.states[id].accepting = true;
    }
    for (const auto& [guards, edges] : by_guards) expand_edges(id, guards, edges);
    for (const auto& [key, targets] : calls) {
      const uint32_t target = find(targets);
      dfa_.states[id].calls.push_back({key.first, target, key.second});
    }
  }

  // Between two neighbouring borders of ranges all symbols lead to the same states.
  void expand_edges(uint32_t id, uint8_t guards, const std::vector<Edge>& edges) {
    std::map<uint32_t, std::pair<Set, Set>> borders;  // symbol -> targets that begin there, that have ended
    for (const Edge& edge : edges) {
      borders[edge.first].first.push_back(edge.target);
      borders[edge.last + 1u].second.push_back(edge.target);
    }
    std::map<uint32_t, int> open;
    for (auto border = borders.begin(); border != borders.end(); ++border) {
      for (const uint32_t target : border->second.first) ++open[target];
      for (const uint32_t target : border->second.second)
        if (--open[target] == 0) open.erase(target);
      if (open.empty()) continue;
      Set targets;
      for (const auto& [target, count] : open) targets.push_back(target);
      nfa_.budget().spend(static_cast<int64_t>(targets.size()));
      const uint32_t target = find(std::move(targets));
      const auto first = static_cast<Symbol>(border->first);
      const auto last = static_cast<Symbol>(std::next(border)->first - 1);
      std::vector<Edge>& out = dfa_.states[id].edges;
      if (!out.empty() && out.back().target == target && out.back().guards == guards &&
          out.back().last + 1 == first) {
        out.back().last = last;
      } else {
        out.push_back({first, last, target, guards});
      }
    }
  }

  const Nfa& nfa_;
  Dfa dfa_;
  std::map<Set, uint32_t> ids_;
  std::vector<const Set*> sets_;
};

// The edge of a symbol; null: none.
const Edge* edge_at(const Dfa::State& state, Symbol symbol) {
  for (const Edge& edge : state.edges)
    if (edge.first <= symbol && symbol <= edge.last) return &edge;
  return nullptr;
}

constexpr uint32_t kNowhere = UINT32_MAX;

// Walks both automata at once. With `subtract`, the right one may have ended and must not accept.
Dfa product(const Dfa& left, const Dfa& right, bool subtract, Budget& budget) {
  Dfa out;
  if (left.states.empty()) return out;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> ids;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  const auto find = [&](uint32_t a, uint32_t b) {
    const auto [found, is_new] = ids.emplace(std::pair{a, b}, static_cast<uint32_t>(pairs.size()));
    if (is_new) {
      budget.spend(8);
      pairs.emplace_back(a, b);
      out.states.emplace_back();
      const bool accepts_right = b != kNowhere && right.states[b].accepting;
      out.states.back().accepting = left.states[a].accepting && accepts_right != subtract;
    }
    return found->second;
  };
  if (right.states.empty() && !subtract) return out;
  find(0, right.states.empty() ? kNowhere : 0);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto [a, b] = pairs[i];
    for (const Edge& edge : left.states[a].edges) {
      for (uint32_t at = edge.first; at <= edge.last;) {  // piece by piece of the right one's edges
        uint32_t last = edge.last, target = kNowhere;
        if (b != kNowhere) {
          if (const Edge* other = edge_at(right.states[b], static_cast<Symbol>(at))) {
            last = std::min<uint32_t>(last, other->last);
            target = other->target;
          } else {
            for (const Edge& later : right.states[b].edges)
              if (later.first > at) last = std::min<uint32_t>(last, later.first - 1u);
          }
        }
        budget.spend(2);
        if (target != kNowhere || subtract) {
          const uint32_t to = find(edge.target, target);
          out.states[i].edges.push_back({static_cast<Symbol>(at), static_cast<Symbol>(last), to, 0});
        }
        at = last + 1;
      }
    }
  }
  trim(out);
  return out;
}

}  // namespace

Dfa determinise(const Nfa& nfa) { return Determiniser(nfa).run(); }

Dfa automaton(const Expression& expression, Writing writing, Budget& budget) {
  Nfa nfa(budget);
  nfa.accepting = nfa.append(expression, nfa.add_state(), writing);
  Dfa dfa = determinise(nfa);
  trim(dfa);
  return dfa;
}

bool Dfa::matches(std::string_view bytes) const {
  if (states.empty()) return false;
  uint32_t at = 0;
  for (const char c : bytes) {
    const Edge* edge = edge_at(states[at], static_cast<uint8_t>(c));
    if (edge == nullptr) return false;
    at = edge->target;
  }
  return states[at].accepting;
}

Dfa intersection(const Dfa& left, const Dfa& right, Budget& budget) {
  return product(left, right, false, budget);
}

Dfa difference(const Dfa& left, const Dfa& right, Budget& budget) {
  return product(left, right, true, budget);
}

void trim(Dfa& dfa) {
  const size_t count = dfa.states.size();
  std::vector<std::vector<uint32_t>> into(count);
  std::vector<bool> alive(count);
  std::vector<uint32_t> work;
  for (uint32_t i = 0; i < count; ++i) {
    for (const Edge& edge : dfa.states[i].edges) into[edge.target].push_back(i);
    if (!dfa.states[i].accepting) continue;
    alive[i] = true;
    work.push_back(i);
  }
  while (!work.empty()) {
    const uint32_t at = work.back();
    work.pop_back();
    for (const uint32_t from : into[at]) {
      if (alive[from]) continue;
      alive[from] = true;
      work.push_back(from);
    }
  }
  if (count == 0 || !alive[0]) return dfa.states.clear();
  std::vector<uint32_t> renamed(count);
  uint32_t next = 0;
  for (uint32_t i = 0; i < count; ++i) renamed[i] = alive[i] ? next++ : kNowhere;
  Dfa out;
  for (uint32_t i = 0; i < count; ++i) {
    if (!alive[i]) continue;
    Dfa::State state{.accepting = dfa.states[i].accepting};
    for (Edge edge : dfa.states[i].edges) {
      edge.target = renamed[edge.target];
      if (edge.target != kNowhere) state.edges.push_back(edge);
    }
    out.states.push_back(std::move(state));
  }
  dfa = std::move(out);
}

uint32_t append(Nfa& nfa, const Dfa& dfa, uint32_t from) {
  const uint32_t end = nfa.add_state();
  if (dfa.states.empty()) return end;
  const auto base = static_cast<uint32_t>(nfa.states.size());
  for (size_t i = 0; i < dfa.states.size(); ++i) nfa.add_state();
  for (uint32_t i = 0; i < dfa.states.size(); ++i) {
    for (const Edge& edge : dfa.states[i].edges)
      nfa.add_edge(base + i, edge.first, edge.last, base + edge.target, edge.guards);
    if (dfa.states[i].accepting) nfa.add_epsilon(base + i, end);
  }
  nfa.add_epsilon(from, base);
  return end;
}

}  // namespace sluice::text::grammar
