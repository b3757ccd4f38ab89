// What can be done with automata that have one way for each symbol.
#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "text/grammar/automaton.h"

namespace sluice::text::grammar {
namespace {

constexpr uint32_t kNowhere = UINT32_MAX;

// The edge of a symbol; null: none.
const Edge* edge_at(std::span<const Edge> edges, Symbol symbol) {
  for (const Edge& edge : edges)
    if (edge.first <= symbol && symbol <= edge.last) return &edge;
  return nullptr;
}

// Walks both automata at once. With `subtract`, the right one may have ended and must not accept.
Dfa product(const Dfa& left, const Dfa& right, bool subtract, Budget& budget) {
  Dfa out;
  if (left.empty() || (right.empty() && !subtract)) return out;
  std::unordered_map<uint64_t, uint32_t> ids;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  const auto find = [&](uint32_t a, uint32_t b) {
    const auto [found, is_new] = ids.emplace(uint64_t{a} << 32 | b, static_cast<uint32_t>(pairs.size()));
    if (is_new) {
      budget.spend(8, 80);
      pairs.emplace_back(a, b);
    }
    return found->second;
  };
  find(0, right.empty() ? kNowhere : 0);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto [a, b] = pairs[i];
    const bool accepts_right = b != kNowhere && right.states[b].accepting;
    out.add_state(left.states[a].accepting && accepts_right != subtract);
    const std::span<const Edge> others = b == kNowhere ? std::span<const Edge>() : right.edges_of(b);
    auto other = others.begin();
    for (const Edge& edge : left.edges_of(a)) {
      for (uint32_t at = edge.first; at <= edge.last;) {  // piece by piece of the right one's edges
        budget.spend(2);
        while (other != others.end() && other->last < at) ++other;
        const bool fits = other != others.end() && other->first <= at;
        uint32_t last = edge.last;
        if (other != others.end()) last = std::min<uint32_t>(last, fits ? other->last : other->first - 1u);
        if (fits || subtract) {
          budget.spend(0, sizeof(Edge));
          const uint32_t to = find(edge.target, fits ? other->target : kNowhere);
          out.add_edge(static_cast<Symbol>(at), static_cast<Symbol>(last), to);
        }
        at = last + 1;
      }
    }
  }
  trim(out);
  return out;
}

constexpr bool must_be_escaped(uint32_t byte) { return byte < 0x20 || byte == '"' || byte == '\\'; }

// The states between two characters; `written`: in a JSON string.
std::vector<bool> between_characters(const Dfa& dfa, bool written) {
  // How many bytes of a character are still to come, at most; -1: not met yet. Within escapes: kEscape.
  constexpr int kEscape = 100, kHex = 101;  // \, \u and its digits
  std::vector<int> inside(dfa.states.size(), -1);
  std::vector<uint32_t> work;
  const auto meet = [&](uint32_t state, int left) {
    if (inside[state] >= 0) return;
    inside[state] = left;
    work.push_back(state);
  };
  if (!dfa.empty()) meet(0, 0);
  while (!work.empty()) {
    const uint32_t at = work.back();
    work.pop_back();
    for (const Edge& edge : dfa.edges_of(at)) {
      const int left = inside[at];
      if (left == kEscape) {
        meet(edge.target, edge.first == 'u' ? kHex : 0);
      } else if (left >= kHex) {
        meet(edge.target, left == kHex + 3 ? 0 : left + 1);
      } else if (left > 0) {
        meet(edge.target, left - 1);
      } else if (written && edge.first == '\\') {
        meet(edge.target, kEscape);
      } else {
        meet(edge.target, edge.first < 0x80 ? 0 : edge.first < 0xE0 ? 1 : edge.first < 0xF0 ? 2 : 3);
      }
    }
  }
  std::vector<bool> out(dfa.states.size());
  for (size_t i = 0; i < inside.size(); ++i) out[i] = inside[i] == 0;
  return out;
}

}  // namespace

void Dfa::add_state(bool accepting) {
  const auto edge = static_cast<uint32_t>(edges.size()), call = static_cast<uint32_t>(calls.size());
  states.push_back({edge, edge, call, call, accepting});
}

void Dfa::add_edge(Symbol first, Symbol last, uint32_t target, bool counts) {
  edges.push_back({first, last, target, counts});
  ++states.back().last_edge;
}

void Dfa::add_call(uint32_t rule, uint32_t target, bool counts) {
  calls.push_back({rule, target, counts});
  ++states.back().last_call;
}

bool Dfa::matches(std::string_view bytes) const {
  if (states.empty()) return false;
  uint32_t at = 0;
  for (const char c : bytes) {
    const Edge* edge = edge_at(edges_of(at), static_cast<uint8_t>(c));
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

// A tree: a state is the texts, neighbours in order, that begin alike.
Dfa text_set(std::vector<std::string_view> texts, Budget& budget) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  Dfa out;
  if (texts.empty()) return out;
  struct Group {
    uint32_t first, last, length;
  };
  std::vector<Group> groups = {{0, static_cast<uint32_t>(texts.size()), 0}};
  budget.spend(static_cast<int64_t>(texts.size()) * 4, static_cast<int64_t>(texts.size() * sizeof(texts[0])));
  for (size_t i = 0; i < groups.size(); ++i) {
    auto [at, last, length] = groups[i];
    const bool is_one = texts[at].size() == length;  // the shortest comes first
    out.add_state(is_one);
    at += is_one ? 1 : 0;
    while (at < last) {
      budget.spend(2, 2 * sizeof(Group) + sizeof(Dfa::State) + sizeof(Edge));
      const char byte = texts[at][length];
      uint32_t end = at + 1;
      while (end < last && texts[end][length] == byte) ++end;
      budget.spend((end - at) / 8);
      const auto symbol = static_cast<uint8_t>(byte);
      out.add_edge(symbol, symbol, static_cast<uint32_t>(groups.size()));
      groups.push_back({at, end, length + 1});
      at = end;
    }
  }
  return out;
}

void trim(Dfa& dfa) {
  const size_t count = dfa.states.size();
  std::vector<std::pair<uint32_t, uint32_t>> backwards;
  backwards.reserve(dfa.edges.size());
  std::vector<bool> alive(count);
  std::vector<uint32_t> work;
  for (uint32_t i = 0; i < count; ++i) {
    for (const Edge& edge : dfa.edges_of(i)) backwards.emplace_back(edge.target, i);
    if (!dfa.states[i].accepting) continue;
    alive[i] = true;
    work.push_back(i);
  }
  const Rows<uint32_t> into(backwards, count);
  while (!work.empty()) {
    const uint32_t at = work.back();
    work.pop_back();
    for (const uint32_t from : into[at]) {
      if (alive[from]) continue;
      alive[from] = true;
      work.push_back(from);
    }
  }
  if (count == 0 || !alive[0]) {
    dfa = {};
    return;
  }
  std::vector<uint32_t> renamed(count);
  uint32_t next = 0;
  for (uint32_t i = 0; i < count; ++i) renamed[i] = alive[i] ? next++ : kNowhere;
  if (next == count) return;
  Dfa out;
  for (uint32_t i = 0; i < count; ++i) {
    if (!alive[i]) continue;
    out.add_state(dfa.states[i].accepting);
    for (const Edge& edge : dfa.edges_of(i))
      if (alive[edge.target]) out.add_edge(edge.first, edge.last, renamed[edge.target], edge.counts);
  }
  dfa = std::move(out);
}

namespace {

// Puts the escapes of characters behind the states of an automaton. What comes behind a backslash depends
// only on where each character leads, so states that agree in that share their escapes.
class Escapes {
 public:
  Escapes(Dfa& out, uint32_t first, Budget& budget) : out_(out), next_(first), budget_(budget) {}

  /// By byte: where it leads, or kNowhere.
  using Targets = std::map<uint8_t, uint32_t>;
  /// The state behind the backslash. States come when add_states() is called.
  uint32_t behind_backslash(const Targets& targets) {
    const auto [found, is_new] = ids_.try_emplace(targets, next_);
    if (!is_new) return found->second;
    order_.push_back(&found->first);
    next_ += 1;
    if (needs_hex(targets)) next_ += 5;  // u, 0, 0, and what follows 0 and 1
    budget_.spend(40, 500);
    return found->second;
  }

  void add_states() {
    static const std::map<char, char> kShort = {{'"', '"'},  {'\\', '\\'}, {'b', '\b'}, {'f', '\f'},
                                                {'n', '\n'}, {'r', '\r'},  {'t', '\t'}};
    for (const Targets* targets : order_) {
      const auto here = static_cast<uint32_t>(out_.states.size());
      out_.add_state(false);
      for (const auto& [letter, byte] : kShort)
        if (const auto found = targets->find(static_cast<uint8_t>(byte)); found != targets->end())
          add(letter, found->second);
      if (!needs_hex(*targets)) continue;
      std::array<bool, 2> any{};
      for (const auto& [byte, target] : *targets)
        if (is_hex(byte)) any[byte >> 4] = true;
      add('u', here + 1);
      for (uint32_t i = 1; i <= 2; ++i) out_.add_state(false), add('0', here + i + 1);
      out_.add_state(false);
      for (uint32_t high = 0; high < 2; ++high)
        if (any[high]) add(static_cast<char>('0' + high), here + 4 + high);
      for (uint32_t high = 0; high < 2; ++high) {
        out_.add_state(false);
        for (const auto& [byte, target] : *targets)
          if (is_hex(byte) && byte >> 4 == high) add("0123456789abcdef"[byte & 15], target);
      }
    }
  }

 private:
  static bool is_hex(uint8_t byte) {
    return byte < 0x20 &&
           std::string_view("\b\f\n\r\t").find(static_cast<char>(byte)) == std::string_view::npos;
  }
  static bool needs_hex(const Targets& targets) {
    return std::any_of(targets.begin(), targets.end(), [](const auto& one) { return is_hex(one.first); });
  }
  void add(char byte, uint32_t target) {
    const auto symbol = static_cast<uint8_t>(byte);
    out_.add_edge(symbol, symbol, target);
  }

  Dfa& out_;
  uint32_t next_;
  Budget& budget_;
  std::map<Targets, uint32_t> ids_;
  std::vector<const Targets*> order_;
};

}  // namespace

Dfa json_written(const Dfa& dfa, Budget& budget) {
  const std::vector<bool> between = between_characters(dfa, false);
  Dfa out;
  Escapes escapes(out, static_cast<uint32_t>(dfa.states.size()), budget);
  for (uint32_t i = 0; i < dfa.states.size(); ++i) {
    const std::span<const Edge> edges = dfa.edges_of(i);
    budget.spend(1 + static_cast<int64_t>(edges.size()),
                 static_cast<int64_t>(sizeof(Dfa::State) + (edges.size() + 1) * sizeof(Edge)));
    out.add_state(dfa.states[i].accepting);
    if (!between[i]) {
      for (const Edge& edge : edges) out.add_edge(edge.first, edge.last, edge.target);
      continue;
    }
    Escapes::Targets escaped;
    for (const Edge& edge : edges)
      for (uint32_t c = edge.first; c <= std::min<uint32_t>(edge.last, '\\'); ++c)
        if (must_be_escaped(c)) escaped[static_cast<uint8_t>(c)] = edge.target;
    uint32_t backslash = escaped.empty() ? kNowhere : escapes.behind_backslash(escaped);
    const auto add_backslash = [&] {
      if (backslash != kNowhere) out.add_edge('\\', '\\', std::exchange(backslash, kNowhere));
    };
    for (const Edge& edge : edges) {  // what remains stands for itself
      for (const auto& [first, last] :
           {std::pair(0x20, 0x21), std::pair(0x23, 0x5B), std::pair(0x5D, 0xFF)}) {
        if (first == 0x5D && edge.last > 0x5B) add_backslash();
        const int begin = std::max<int>(edge.first, first), end = std::min<int>(edge.last, last);
        if (begin <= end) out.add_edge(static_cast<Symbol>(begin), static_cast<Symbol>(end), edge.target);
      }
    }
    add_backslash();
  }
  escapes.add_states();
  return out;
}

Dfa with_counts(const Dfa& dfa, bool written, Budget& budget) {
  budget.spend(
      static_cast<int64_t>(dfa.states.size()),
      static_cast<int64_t>(dfa.states.size() * sizeof(Dfa::State) + dfa.edges.size() * sizeof(Edge)));
  Dfa out = dfa;
  const std::vector<bool> between = between_characters(dfa, written);
  for (uint32_t i = 0; i < out.states.size(); ++i)
    for (uint32_t e = out.states[i].first_edge; e < out.states[i].last_edge; ++e)
      out.edges[e].counts = between[i];
  return out;
}

Dfa quoted(const Dfa& dfa, Budget& budget) {
  Dfa out;
  if (dfa.empty()) return out;
  budget.spend(
      static_cast<int64_t>(dfa.states.size()),
      static_cast<int64_t>((dfa.states.size() + 2) * sizeof(Dfa::State) + dfa.edges.size() * sizeof(Edge)));
  const auto end = static_cast<uint32_t>(dfa.states.size() + 1);
  out.add_state(false);
  out.add_edge('"', '"', 1);
  for (uint32_t i = 0; i < dfa.states.size(); ++i) {
    out.add_state(false);
    const bool closes = dfa.states[i].accepting;
    if (closes) out.add_edge('"', '"', end);
    for (const Edge& edge : dfa.edges_of(i))
      out.add_edge(edge.first, edge.last, edge.target + 1, edge.counts);
    if (closes) {
      const auto first = out.edges.begin() + out.states.back().first_edge;
      std::sort(first, out.edges.end(), [](const Edge& a, const Edge& b) {
        return std::pair(a.counts, a.first) < std::pair(b.counts, b.first);
      });
    }
  }
  out.add_state(true);
  return out;
}

}  // namespace sluice::text::grammar
