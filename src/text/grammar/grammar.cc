#include "text/grammar/grammar.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace sluice::text::grammar {

uint32_t GrammarBuilder::add_rule(std::string name) {
  budget_.spend(16);
  rules_.emplace_back();
  rules_.back().name = std::move(name);
  return static_cast<uint32_t>(rules_.size() - 1);
}

void GrammarBuilder::define(uint32_t rule, Nfa nfa, uint32_t least, uint32_t most) {
  CHECK(least <= most);
  rules_[rule].nfa = std::make_unique<Nfa>(std::move(nfa));
  rules_[rule].least = least;
  rules_[rule].most = most;
}

uint32_t GrammarBuilder::add_rule(std::string name, const Dfa& dfa) {
  const uint32_t rule = add_rule(std::move(name));
  Nfa nfa(budget_);
  nfa.accepting = append(nfa, dfa, nfa.add_state());
  define(rule, std::move(nfa));
  return rule;
}

uint32_t GrammarBuilder::string_rule(uint32_t least, uint32_t most, JsonStringKind kind) {
  const auto [found, is_new] = strings_.try_emplace({least, most, kind}, 0);
  if (!is_new) return found->second;
  found->second = add_rule("string");
  Rule& rule = rules_.back();
  rule.dfa = json_string(kind);
  budget_.spend(static_cast<int64_t>(rule.dfa.states.size()));
  rule.least = least;
  rule.most = most;
  rule.string_kind = static_cast<int>(kind);
  return found->second;
}

Symbol GrammarBuilder::tag(int32_t token) {
  const auto found = std::find(tags_.begin(), tags_.end(), token);
  const auto index = static_cast<size_t>(found - tags_.begin());
  if (found == tags_.end()) tags_.push_back(token);
  return static_cast<Symbol>(kFirstTag + index);
}

// Rules that match nothing at all, too: whoever calls one may pass by without it. After this every call takes
// at least one byte, and matches of nothing within the called rule are left aside.
void GrammarBuilder::find_nullable() {
  for (bool changed = true; changed;) {
    changed = false;
    for (Rule& rule : rules_) {
      if (rule.nullable || !rule.nfa) continue;
      std::vector<bool> seen(rule.nfa->states.size());
      std::vector<uint32_t> work = {0};
      seen[0] = true;
      const auto visit = [&](uint32_t to) {
        if (!seen[to]) work.push_back(to);
        seen[to] = true;
      };
      while (!work.empty()) {
        budget_.spend(1);
        const Nfa::State& state = rule.nfa->states[work.back()];
        work.pop_back();
        for (const uint32_t to : state.epsilons) visit(to);
        for (const CallEdge& call : state.calls)
          if (rules_[call.rule].nullable) visit(call.target);
      }
      rule.nullable = seen[rule.nfa->accepting];
      changed = changed || rule.nullable;
    }
  }
  for (Rule& rule : rules_) {
    if (!rule.nfa) continue;
    for (uint32_t at = 0; at < rule.nfa->states.size(); ++at)
      for (const CallEdge& call : std::vector<CallEdge>(rule.nfa->states[at].calls))
        if (rules_[call.rule].nullable) rule.nfa->add_epsilon(at, call.target);
  }
}

// Whether a way with these guards can ever be gone; `counts`: whether the rule's counter can rise.
bool GrammarBuilder::passes(const Rule& rule, uint8_t guards, bool counts) const {
  if ((guards & (kCount | kIfRoom)) != 0 && rule.most == 0) return false;
  return (guards & kIfEnough) == 0 || rule.least == 0 || counts;
}

// The states of a rule from which it can be completed, going by the rules that are known to be productive.
std::vector<bool> GrammarBuilder::alive_states(const Rule& rule) const {
  const std::vector<Dfa::State>& states = rule.dfa.states;
  bool counts = false;
  for (const Dfa::State& state : states) {
    for (const Edge& edge : state.edges) counts = counts || (edge.guards & kCount) != 0;
    for (const CallEdge& call : state.calls)
      counts = counts || ((call.guards & kCount) != 0 && rules_[call.rule].productive);
  }
  std::vector<std::vector<uint32_t>> into(states.size());
  std::vector<bool> alive(states.size());
  std::vector<uint32_t> work;
  for (uint32_t i = 0; i < states.size(); ++i) {
    for (const Edge& edge : states[i].edges)
      if (passes(rule, edge.guards, counts)) into[edge.target].push_back(i);
    for (const CallEdge& call : states[i].calls)
      if (rules_[call.rule].productive && passes(rule, call.guards, counts)) into[call.target].push_back(i);
    if (!states[i].accepting) continue;
    alive[i] = true;
    work.push_back(i);
  }
  while (!work.empty()) {
    const uint32_t at = work.back();
    work.pop_back();
    for (const uint32_t from : into[at]) {
      if (!alive[from]) work.push_back(from);
      alive[from] = true;
    }
  }
  return alive;
}

bool GrammarBuilder::find_productive(Rule& rule) {
  if (rule.productive || rule.dfa.states.empty()) return false;
  budget_.spend(static_cast<int64_t>(rule.dfa.states.size()));
  rule.productive = alive_states(rule)[0];
  return rule.productive;
}

Grammar GrammarBuilder::finish(uint32_t root) {
  find_nullable();
  for (Rule& rule : rules_) {
    if (!rule.nfa) continue;
    rule.dfa = determinise(*rule.nfa);
    rule.nfa.reset();
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (Rule& rule : rules_) changed = find_productive(rule) || changed;
  }
  if (!rules_[root].productive) fail("nothing can match it");
  Grammar grammar;
  grammar.root = root;
  grammar.tags = tags_;
  for (uint32_t r = 0; r < rules_.size(); ++r) {
    const Rule& rule = rules_[r];
    const auto base = static_cast<uint32_t>(grammar.states.size());
    grammar.rules.push_back(
        {.start = base, .least = rule.least, .most = rule.most, .string_kind = rule.string_kind});
    if (!rule.productive) continue;
    const std::vector<bool> alive = alive_states(rule);
    for (const Dfa::State& state : rule.dfa.states) {
      Grammar::State flat{.rule = r, .accepting = state.accepting};
      flat.first_edge = static_cast<uint32_t>(grammar.edges.size());
      flat.first_call = static_cast<uint32_t>(grammar.calls.size());
      for (const Edge& edge : state.edges)
        if (alive[edge.target])
          grammar.edges.push_back({edge.first, edge.last, base + edge.target, edge.guards});
      for (const CallEdge& call : state.calls)
        if (alive[call.target] && rules_[call.rule].productive)
          grammar.calls.push_back({call.rule, base + call.target, call.guards});
      flat.last_edge = static_cast<uint32_t>(grammar.edges.size());
      flat.last_call = static_cast<uint32_t>(grammar.calls.size());
      grammar.states.push_back(flat);
    }
  }
  order_rules(grammar);
  return grammar;
}

// A rule before those that it can begin with; depth first, without the stack.
void GrammarBuilder::order_rules(Grammar& grammar) const {
  enum class Mark : uint8_t { New, Open, Done };
  std::vector<Mark> marks(grammar.rules.size(), Mark::New);
  auto order = static_cast<uint32_t>(grammar.rules.size());
  const auto begins_with = [&](uint32_t rule) {
    return rules_[rule].productive ? grammar.calls_of(grammar.states[grammar.rules[rule].start])
                                   : std::span<const CallEdge>();
  };
  for (uint32_t first = 0; first < grammar.rules.size(); ++first) {
    if (marks[first] != Mark::New) continue;
    std::vector<std::pair<uint32_t, size_t>> path = {{first, 0}};
    marks[first] = Mark::Open;
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      const auto calls = begins_with(rule);
      if (next == calls.size()) {
        marks[rule] = Mark::Done;
        grammar.rules[rule].order = --order;
        path.pop_back();
        continue;
      }
      const uint32_t called = calls[next++].rule;
      if (marks[called] == Mark::Open) fail("{} begins with itself without end", rules_[called].name);
      if (marks[called] == Mark::New) {
        marks[called] = Mark::Open;
        path.emplace_back(called, 0);
      }
    }
  }
}

}  // namespace sluice::text::grammar
