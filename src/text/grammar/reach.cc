#include "text/grammar/reach.h"

#include <algorithm>
#include <deque>

namespace sluice::text::grammar {
namespace {

struct Way {
  uint32_t target;
  uint32_t weight;
};

class ReachFinder {
 public:
  ReachFinder(const Dfa& dfa, Budget& budget) : budget_(budget), reach_(dfa.states.size()) {
    const auto count = static_cast<uint32_t>(dfa.states.size());
    std::vector<std::pair<uint32_t, Way>> forward, backward;
    const auto add = [&](uint32_t from, uint32_t to, bool counts) {
      forward.push_back({from, {to, counts ? 1u : 0u}});
      backward.push_back({to, {from, counts ? 1u : 0u}});
    };
    for (uint32_t i = 0; i < count; ++i) {
      accepting_.push_back(dfa.states[i].accepting);
      for (const Edge& edge : dfa.edges_of(i)) add(i, edge.target, edge.counts);
      for (const CallEdge& call : dfa.calls_of(i)) add(i, call.target, call.counts);
    }
    budget_.spend(static_cast<int64_t>(count + forward.size()) * 3,
                  static_cast<int64_t>(count * sizeof(Reach) + forward.size() * 50));
    forward_ = Rows<Way>(forward, count);
    backward_ = Rows<Way>(backward, count);
  }

  std::vector<Reach> run() {
    find_shortest();
    find_longest();
    find_tails();
    return std::move(reach_);
  }

 private:
  void find_shortest() {
    std::deque<std::pair<uint32_t, uint32_t>> work;  // (distance, state), nearest first
    for (uint32_t i = 0; i < accepting_.size(); ++i)
      if (accepting_[i]) reach_[i].shortest = 0, work.emplace_back(0, i);
    while (!work.empty()) {
      const auto [distance, at] = work.front();
      work.pop_front();
      if (reach_[at].shortest < distance) continue;
      for (const Way& way : backward_[at]) {
        if (reach_[way.target].shortest <= distance + way.weight) continue;
        reach_[way.target].shortest = distance + way.weight;
        if (way.weight == 0)
          work.emplace_front(distance, way.target);
        else
          work.emplace_back(distance + 1, way.target);
      }
    }
  }

  bool leads(uint32_t state) const { return reach_[state].shortest != kNoLimit; }

  // Loops are found as strongly connected components (Tarjan), which come out targets first: the longest way
  // is without end where a loop counts, and else one more than that of what follows.
  void find_longest() {
    const auto count = static_cast<uint32_t>(accepting_.size());
    std::vector<uint32_t> index(count, kNoLimit), low(count), component(count, kNoLimit), stack;
    std::vector<std::pair<uint32_t, size_t>> path;
    uint32_t next = 0, components = 0;
    const auto open = [&](uint32_t state) {
      index[state] = low[state] = next++;
      stack.push_back(state);
      path.emplace_back(state, 0);
    };
    for (uint32_t first = 0; first < count; ++first) {
      if (index[first] != kNoLimit || !leads(first)) continue;
      open(first);
      while (!path.empty()) {
        auto& [at, done] = path.back();
        const auto ways = forward_[at];
        if (done < ways.size()) {
          const uint32_t to = ways[done++].target;
          if (!leads(to)) continue;
          if (index[to] == kNoLimit)
            open(to);
          else if (component[to] == kNoLimit)
            low[at] = std::min(low[at], index[to]);
          continue;
        }
        const uint32_t closed = at;
        path.pop_back();
        if (!path.empty()) low[path.back().first] = std::min(low[path.back().first], low[closed]);
        if (low[closed] != index[closed]) continue;
        const auto begin = std::find(stack.rbegin(), stack.rend(), closed).base() - 1;
        for (auto it = begin; it != stack.end(); ++it) component[*it] = components;
        uint32_t longest = 0;
        for (auto it = begin; it != stack.end(); ++it)
          for (const Way& way : forward_[*it])
            longest = std::max(longest, beyond(way, component, components));
        for (auto it = begin; it != stack.end(); ++it) reach_[*it].longest = longest;
        stack.erase(begin, stack.end());
        ++components;
      }
    }
  }

  uint32_t beyond(const Way& way, const std::vector<uint32_t>& component, uint32_t own) const {
    if (!leads(way.target)) return 0;
    if (component[way.target] == own) return way.weight > 0 ? kNoLimit : 0;
    const uint32_t longest = reach_[way.target].longest;
    return longest == kNoLimit ? kNoLimit : longest + way.weight;
  }

  // A tail of a state is covered by those of the states that follow; what is not is cut off, until all are.
  void find_tails() {
    constexpr uint8_t kMostRises = 60;
    std::vector<uint8_t> rises(accepting_.size());
    std::vector<bool> waits(accepting_.size());
    std::deque<uint32_t> work;
    for (uint32_t i = 0; i < accepting_.size(); ++i) {
      reach_[i].tail = reach_[i].shortest;
      if (leads(i)) work.push_back(i), waits[i] = true;
    }
    while (!work.empty()) {
      const uint32_t at = work.front();
      work.pop_front();
      waits[at] = false;
      budget_.spend(1 + static_cast<int64_t>(forward_[at].size()));
      uint32_t tail = std::max(covered_from(at), reach_[at].tail);
      if (tail == reach_[at].tail) continue;
      if (++rises[at] > kMostRises) tail = kNoLimit;
      reach_[at].tail = tail;
      for (const Way& way : backward_[at])
        if (!waits[way.target] && reach_[way.target].tail != kNoLimit)
          waits[way.target] = true, work.push_back(way.target);
    }
  }

  uint32_t covered_from(uint32_t state) const {
    const uint32_t longest = reach_[state].longest;
    uint32_t from = kNoLimit;  // all from here to `longest` is covered
    const auto cover = [&](uint32_t first, uint32_t last) {
      const bool joins = from == kNoLimit ? last == longest : last == kNoLimit || last + 1 >= from;
      if (!joins || first >= from) return false;
      from = first;
      return true;
    };
    for (bool more = true; more;) {
      more = accepting_[state] && cover(0, 0);
      for (const Way& way : forward_[state]) {
        const Reach& next = reach_[way.target];
        if (next.tail == kNoLimit) continue;
        const uint32_t last = next.longest == kNoLimit ? kNoLimit : next.longest + way.weight;
        more = cover(next.tail + way.weight, last) || more;
      }
    }
    return from;
  }

  Budget& budget_;
  std::vector<bool> accepting_;
  Rows<Way> forward_, backward_;
  std::vector<Reach> reach_;
};

}  // namespace

std::vector<Reach> find_reach(const Dfa& dfa, Budget& budget) { return ReachFinder(dfa, budget).run(); }

}  // namespace sluice::text::grammar
