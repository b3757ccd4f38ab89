// The subset construction.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "text/grammar/automaton.h"

namespace sluice::text::grammar {
namespace {

// What stood before a state of the Dfa, as far as places ask for it.
enum Before : uint8_t { kAtStart = 1, kBehindWord = 2 };

bool is_word(uint32_t symbol) {
  return (symbol >= '0' && symbol <= '9') || (symbol >= 'A' && symbol <= 'Z') || symbol == '_' ||
         (symbol >= 'a' && symbol <= 'z');
}

constexpr uint8_t bit(Place place) { return static_cast<uint8_t>(1u << static_cast<unsigned>(place)); }

class Determiniser {
 public:
  explicit Determiniser(const Nfa& nfa)
      : budget_(nfa.budget()),
        accepting_(nfa.accepting),
        edges_(nfa.edges, nfa.size()),
        calls_(nfa.calls, nfa.size()),
        epsilons_(nfa.epsilons, nfa.size()),
        seen_(nfa.size()) {
    for (const auto& [from, epsilon] : nfa.epsilons) {
      has_places_ = has_places_ || epsilon.place != Place::Anywhere;
      has_words_ = has_words_ || epsilon.place == Place::WordEdge || epsilon.place == Place::NoWordEdge;
    }
  }

  Dfa run() {
    find({0}, has_places_ ? kAtStart : 0);
    for (uint32_t i = 0; i < sets_.size(); ++i) expand(i);
    return std::move(dfa_);
  }

 private:
  using Targets = std::vector<uint32_t>;
  struct Set {
    size_t begin;
    uint32_t size;
    uint32_t next;  ///< with the same hash
    uint8_t before;
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  static uint8_t passable(uint8_t before) {
    return bit(Place::Anywhere) | ((before & kAtStart) != 0 ? bit(Place::Start) : 0);
  }
  static uint8_t edge_of_words(uint8_t before, bool word_next) {
    return bit(((before & kBehindWord) != 0) != word_next ? Place::WordEdge : Place::NoWordEdge);
  }

  // All that can be reached over passable epsilons and does something; sorted.
  Targets close(Targets targets, uint8_t passable) {
    if (++round_ == 0) std::fill(seen_.begin(), seen_.end(), 0), round_ = 1;
    Targets out;
    for (const uint32_t at : targets) seen_[at] = round_;
    int64_t steps = 8;
    while (!targets.empty()) {
      const uint32_t at = targets.back();
      targets.pop_back();
      bool waits = false;
      for (const Nfa::Epsilon& epsilon : epsilons_[at]) {
        ++steps;
        if ((passable & bit(epsilon.place)) == 0)
          waits = true;
        else if (seen_[epsilon.target] != round_)
          seen_[epsilon.target] = round_, targets.push_back(epsilon.target);
      }
      // States of epsilons alone tell nothing.
      if (waits || !edges_[at].empty() || !calls_[at].empty() || at == accepting_) out.push_back(at);
      ++steps;
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    budget_.spend(steps);
    return out;
  }

  uint32_t find(Targets targets, uint8_t before) {
    const Targets set = close(std::move(targets), passable(before));
    uint64_t hash = 0x9E3779B97F4A7C15u + before;
    for (const uint32_t at : set) hash = (hash ^ at) * 0xD6E8FEB86659FD93u, hash ^= hash >> 32;
    const auto [first, is_new] = by_hash_.try_emplace(hash, kNone);
    for (uint32_t id = first->second; id != kNone; id = sets_[id].next) {
      const Set& other = sets_[id];
      if (other.before == before && other.size == set.size() &&
          std::equal(set.begin(), set.end(), pool_.begin() + static_cast<std::ptrdiff_t>(other.begin)))
        return id;
    }
    budget_.spend(4, static_cast<int64_t>(100 + 8 * set.size()));
    sets_.push_back({pool_.size(), static_cast<uint32_t>(set.size()), first->second, before});
    pool_.insert(pool_.end(), set.begin(), set.end());
    return first->second = static_cast<uint32_t>(sets_.size() - 1);
  }

  void expand(uint32_t id) {
    const Set set = sets_[id];
    const Targets own(pool_.begin() + static_cast<std::ptrdiff_t>(set.begin),
                      pool_.begin() + static_cast<std::ptrdiff_t>(set.begin + set.size));
    const auto holds = [&](const Targets& targets) {
      return std::find(targets.begin(), targets.end(), accepting_) != targets.end();
    };
    const uint8_t ways = passable(set.before);
    dfa_.add_state(
        holds(has_places_ ? close(own, ways | bit(Place::End) | edge_of_words(set.before, false)) : own));
    if (!has_words_) {
      expand_bytes(own, [](uint32_t) { return true; });
    } else {  // whether a word goes on is known with the next byte only
      expand_bytes(close(own, ways | edge_of_words(set.before, true)), is_word);
      expand_bytes(close(own, ways | edge_of_words(set.before, false)),
                   [](uint32_t c) { return !is_word(c); });
      auto first = dfa_.edges.begin() + dfa_.states.back().first_edge;
      std::sort(first, dfa_.edges.end(), [](const Edge& a, const Edge& b) { return a.first < b.first; });
    }
    std::map<std::pair<uint32_t, bool>, Targets> calls;
    for (const uint32_t at : own)
      for (const CallEdge& call : calls_[at]) calls[{call.rule, call.counts}].push_back(call.target);
    for (auto& [key, targets] : calls) dfa_.add_call(key.first, find(std::move(targets), 0), key.second);
    budget_.spend(static_cast<int64_t>(calls.size()), static_cast<int64_t>(calls.size() * sizeof(CallEdge)));
  }

  template <typename Filter>
  void expand_bytes(const Targets& set, const Filter& filter) {
    for (const bool counts : {false, true}) {
      std::vector<Edge> edges;
      for (const uint32_t at : set)
        for (const Edge& edge : edges_[at])
          if (edge.counts == counts) edges.push_back(edge);
      if (!edges.empty()) expand_edges(edges, counts, filter);
    }
  }

  // Between two neighbouring borders of ranges all symbols lead to the same states.
  template <typename Filter>
  void expand_edges(const std::vector<Edge>& edges, bool counts, const Filter& filter) {
    std::map<uint32_t, std::pair<Targets, Targets>>
        borders;  // symbol -> targets that begin there, that have ended
    for (const Edge& edge : edges) {
      borders[edge.first].first.push_back(edge.target);
      borders[edge.last + 1u].second.push_back(edge.target);
    }
    if (has_words_)
      for (const uint32_t c : {0x30u, 0x3Au, 0x41u, 0x5Bu, 0x5Fu, 0x60u, 0x61u, 0x7Bu})  // of is_word()
        borders[c];
    std::map<uint32_t, int> open;
    for (auto border = borders.begin(); border != borders.end(); ++border) {
      for (const uint32_t target : border->second.first) ++open[target];
      for (const uint32_t target : border->second.second)
        if (--open[target] == 0) open.erase(target);
      if (open.empty() || !filter(border->first)) continue;
      Targets targets;
      for (const auto& [target, count] : open) targets.push_back(target);
      const auto first = static_cast<Symbol>(border->first);
      const auto last = static_cast<Symbol>(std::next(border)->first - 1);
      const uint32_t target = find(std::move(targets), has_words_ && is_word(first) ? kBehindWord : 0);
      if (dfa_.edges.size() > dfa_.states.back().first_edge) {
        Edge& before = dfa_.edges.back();
        if (before.target == target && before.counts == counts && before.last + 1 == first) {
          before.last = last;
          continue;
        }
      }
      budget_.spend(1, sizeof(Edge));
      dfa_.add_edge(first, last, target, counts);
    }
    budget_.spend(static_cast<int64_t>(edges.size() + borders.size()));
  }

  Budget& budget_;
  const uint32_t accepting_;
  const Rows<Edge> edges_;
  const Rows<CallEdge> calls_;
  const Rows<Nfa::Epsilon> epsilons_;
  bool has_places_ = false, has_words_ = false;
  std::vector<uint32_t> seen_;  ///< by state of the Nfa: the round in which it was met
  uint32_t round_ = 0;
  std::unordered_map<uint64_t, uint32_t> by_hash_;
  std::vector<Set> sets_;
  std::vector<uint32_t> pool_;  ///< the sets' states
  Dfa dfa_;
};

}  // namespace

Dfa determinise(const Nfa& nfa) {
  if (nfa.size() == 0) return {};
  return Determiniser(nfa).run();
}

Dfa automaton(const Expression& expression, Budget& budget) {
  if (expression.kind == Expression::Kind::Both || expression.kind == Expression::Kind::Except) {
    const Dfa left = automaton(*expression.parts[0], budget), right = automaton(*expression.parts[1], budget);
    return expression.kind == Expression::Kind::Both ? intersection(left, right, budget)
                                                     : difference(left, right, budget);
  }
  Nfa nfa(budget);
  const uint32_t start = nfa.add_state();
  nfa.accepting = nfa.append(expression, start);
  Dfa dfa = determinise(nfa);
  trim(dfa);
  return dfa;
}

}  // namespace sluice::text::grammar
