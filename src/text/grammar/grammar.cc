#include "text/grammar/grammar.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace sluice::text::grammar {

uint32_t GrammarBuilder::add_rule(std::string name) {
  budget_->spend(16, static_cast<int64_t>(sizeof(Rule) + sizeof(Grammar::Rule) + name.size()));
  rules_.emplace_back();
  rules_.back().name = std::move(name);
  return static_cast<uint32_t>(rules_.size() - 1);
}

void GrammarBuilder::define(uint32_t rule, Nfa nfa) {
  rules_[rule].nfa = std::make_unique<Nfa>(std::move(nfa));
}

void GrammarBuilder::define_at_once(uint32_t rule, const Nfa& nfa, uint32_t least, uint32_t most) {
  CHECK(least <= most);
  rules_[rule].dfa = determinise(nfa);
  rules_[rule].least = least;
  rules_[rule].most = most;
}

uint32_t GrammarBuilder::add_rule(std::string name, Dfa dfa, uint32_t least, uint32_t most) {
  const uint32_t rule = add_rule(std::move(name));
  rules_[rule].dfa = std::move(dfa);
  rules_[rule].least = least;
  rules_[rule].most = most;
  return rule;
}

uint32_t GrammarBuilder::repeat_rule(std::string name, uint32_t repeated, uint32_t least, uint32_t most) {
  Dfa loop;
  loop.add_state(true);
  loop.add_call(repeated, 0, true);
  const uint32_t rule = add_rule(std::move(name), std::move(loop), least, most);
  rules_[rule].repeats = repeated;
  return rule;
}

uint32_t GrammarBuilder::string_rule(uint32_t least, uint32_t most, JsonStringKind kind) {
  const auto [found, is_new] = strings_.try_emplace({least, most, kind}, 0);
  if (!is_new) return found->second;
  const Dfa& dfa = json_string(kind);
  budget_->spend(static_cast<int64_t>(dfa.states.size()), static_cast<int64_t>(dfa.states.size() * 200));
  found->second = add_rule("string", dfa, least, most);
  rules_.back().string_kind = static_cast<int>(kind);
  return found->second;
}

void GrammarBuilder::forget(uint32_t from) {
  for (Rule& rule : std::span(rules_).subspan(from)) {
    if (rule.string_kind >= 0) continue;
    rule.nfa.reset();
    rule.dfa = {};
    rule.repeats = kNoRule;
  }
}

Symbol GrammarBuilder::tag(int32_t token) {
  const auto found = std::find(tags_.begin(), tags_.end(), token);
  const auto index = static_cast<size_t>(found - tags_.begin());
  if (found == tags_.end()) tags_.push_back(token);
  return static_cast<Symbol>(kFirstTag + index);
}

// Rules that match nothing at all, too: from the states from which nothing need follow, backwards. Whoever
// calls such a rule may pass by without it. After this every call takes at least one byte, and matches of
// nothing within the called rule are left aside.
void GrammarBuilder::find_nullable() {
  bases_.assign(1, 0);
  for (const Rule& rule : rules_) bases_.push_back(bases_.back() + (rule.nfa ? rule.nfa->size() : 0));
  struct Caller {
    uint32_t state, rule;  // rule: what is called; kNoRule: nothing, an epsilon
  };
  std::vector<std::pair<uint32_t, Caller>> pairs;
  std::vector<uint32_t> owner(bases_.back()), work, done;
  std::vector<std::vector<uint32_t>> waiting(rules_.size()), repeated(rules_.size());
  for (uint32_t r = 0; r < rules_.size(); ++r) {
    Rule& rule = rules_[r];
    if (rule.repeats != kNoRule) repeated[rule.repeats].push_back(r);
    if (!rule.dfa.empty() && rule.dfa.states[0].accepting && rule.least == 0) done.push_back(r);
    if (!rule.nfa) continue;
    const uint32_t base = bases_[r];
    std::fill(owner.begin() + base, owner.begin() + bases_[r + 1], r);
    for (const auto& [from, epsilon] : rule.nfa->epsilons)
      pairs.push_back({base + epsilon.target, {base + from, kNoRule}});
    for (const auto& [from, call] : rule.nfa->calls)
      pairs.push_back({base + call.target, {base + from, call.rule}});
    work.push_back(base + rule.nfa->accepting);
  }
  budget_->spend(static_cast<int64_t>(pairs.size() + owner.size()), static_cast<int64_t>(pairs.size() * 40));
  const Rows<Caller> into(pairs, owner.size());
  std::vector<bool> seen(owner.size());
  for (const uint32_t state : work) seen[state] = true;
  const auto reach = [&](uint32_t state) {
    if (seen[state]) return;
    seen[state] = true;
    work.push_back(state);
  };
  while (!work.empty() || !done.empty()) {
    if (!done.empty()) {
      const uint32_t r = done.back();
      done.pop_back();
      if (rules_[r].nullable) continue;
      rules_[r].nullable = true;
      for (const uint32_t state : waiting[r]) reach(state);
      for (const uint32_t repeat : repeated[r]) rules_[repeat].least = 0, done.push_back(repeat);
      continue;
    }
    const uint32_t at = work.back();
    work.pop_back();
    if (at == bases_[owner[at]]) done.push_back(owner[at]);
    for (const Caller& caller : into[at]) {
      if (caller.rule == kNoRule || rules_[caller.rule].nullable)
        reach(caller.state);
      else
        waiting[caller.rule].push_back(caller.state);
    }
  }
}

void GrammarBuilder::pass_nullable() {
  for (Rule& rule : rules_) {
    if (!rule.nfa) continue;
    for (const auto& [from, call] : rule.nfa->calls)
      if (rules_[call.rule].nullable) rule.nfa->add_epsilon(from, call.target);
    rule.dfa = determinise(*rule.nfa);
    rule.nfa.reset();
  }
}

// The states from which their rules can be completed, and the rules that match something: backwards from the
// ends. Counts are left aside here, but for rules that are known to be impossible.
void GrammarBuilder::find_productive() {
  bases_.assign(1, 0);
  size_t ways = 0;
  for (Rule& rule : rules_) {
    bases_.push_back(bases_.back() + static_cast<uint32_t>(rule.dfa.states.size()));
    ways += rule.dfa.edges.size() + rule.dfa.calls.size();
    rule.productive = false;
  }
  struct Caller {
    uint32_t state, rule;
  };
  std::vector<std::pair<uint32_t, Caller>> pairs;
  std::vector<uint32_t> owner(bases_.back()), work;
  budget_->spend(static_cast<int64_t>(ways + owner.size()),
                 static_cast<int64_t>(ways * 24 + owner.size() * 12));
  pairs.reserve(ways);
  alive_.assign(owner.size(), false);
  const auto reach = [&](uint32_t state) {
    if (alive_[state]) return;
    alive_[state] = true;
    work.push_back(state);
  };
  for (uint32_t r = 0; r < rules_.size(); ++r) {
    const Dfa& dfa = rules_[r].dfa;
    const uint32_t base = bases_[r];
    for (uint32_t i = 0; i < dfa.states.size(); ++i) {
      owner[base + i] = r;
      for (const Edge& edge : dfa.edges_of(i)) pairs.push_back({base + edge.target, {base + i, kNoRule}});
      for (const CallEdge& call : dfa.calls_of(i))
        pairs.push_back({base + call.target, {base + i, call.rule}});
      if (dfa.states[i].accepting) reach(base + i);
    }
  }
  const Rows<Caller> into(pairs, owner.size());
  std::vector<std::vector<uint32_t>> waiting(rules_.size());
  while (!work.empty()) {
    const uint32_t at = work.back();
    work.pop_back();
    Rule& own = rules_[owner[at]];
    if (at == bases_[owner[at]] && !own.impossible) {
      own.productive = true;
      for (const uint32_t state : std::exchange(waiting[owner[at]], {})) reach(state);
    }
    for (const Caller& caller : into[at]) {
      if (caller.rule == kNoRule || rules_[caller.rule].productive)
        reach(caller.state);
      else
        waiting[caller.rule].push_back(caller.state);
    }
  }
}

// A rule's automaton without the ways that lead nowhere; its states stay where they are.
Dfa GrammarBuilder::alive_part(const Rule& rule) const {
  const uint32_t base = bases_[static_cast<size_t>(&rule - rules_.data())];
  Dfa out;
  for (uint32_t i = 0; i < rule.dfa.states.size(); ++i) {
    out.add_state(rule.dfa.states[i].accepting);
    for (const Edge& edge : rule.dfa.edges_of(i))
      if (alive_[base + edge.target]) out.add_edge(edge.first, edge.last, edge.target, edge.counts);
    for (const CallEdge& call : rule.dfa.calls_of(i))
      if (alive_[base + call.target] && rules_[call.rule].productive)
        out.add_call(call.rule, call.target, call.counts);
  }
  return out;
}

// Whether counts alone make sure that nothing matches.
bool GrammarBuilder::find_impossible(Rule& rule) {
  if (!rule.productive || !rule.is_counted()) return false;
  rule.reach = find_reach(alive_part(rule), *budget_);
  rule.impossible = !rule.reach[0].leads(0, rule.least, rule.most);
  return rule.impossible;
}

Grammar GrammarBuilder::finish(uint32_t root) {
  find_nullable();
  pass_nullable();
  for (bool changed = true; changed;) {
    find_productive();
    changed = false;
    for (Rule& rule : rules_) changed = find_impossible(rule) || changed;
  }
  if (!rules_[root].productive) fail("nothing can match it");
  Grammar grammar;
  grammar.root = root;
  grammar.tags = tags_;
  for (uint32_t r = 0; r < rules_.size(); ++r) {
    Rule& rule = rules_[r];
    const auto base = static_cast<uint32_t>(grammar.states.size());
    grammar.rules.push_back(
        {.start = base, .least = rule.least, .most = rule.most, .string_kind = rule.string_kind});
    if (!rule.productive) continue;
    const Dfa dfa = alive_part(rule);
    rule.dfa = {};
    budget_->spend(
        static_cast<int64_t>(dfa.states.size()),
        static_cast<int64_t>(dfa.states.size() * sizeof(Grammar::State) + dfa.edges.size() * sizeof(Edge) +
                             dfa.calls.size() * sizeof(CallEdge)));
    const auto first_edge = static_cast<uint32_t>(grammar.edges.size());
    const auto first_call = static_cast<uint32_t>(grammar.calls.size());
    for (const Dfa::State& state : dfa.states)
      grammar.states.push_back({first_edge + state.first_edge, first_edge + state.last_edge,
                                first_call + state.first_call, first_call + state.last_call, r,
                                state.accepting});
    for (const Edge& edge : dfa.edges)
      grammar.edges.push_back({edge.first, edge.last, base + edge.target, edge.counts});
    for (const CallEdge& call : dfa.calls)
      grammar.calls.push_back({call.rule, base + call.target, call.counts});
    if (!rule.is_counted()) continue;
    Grammar::Rule& flat = grammar.rules.back();
    flat.reach = static_cast<uint32_t>(grammar.reach.size());
    for (const Reach& reach : rule.reach) {
      const auto widen = [](uint32_t& far, uint32_t one) {
        far = one == kNoLimit ? far : std::max(far, one);
      };
      widen(flat.far_shortest, reach.shortest);
      widen(flat.far_shortest, reach.tail);
      widen(flat.far_longest, reach.longest);
    }
    grammar.reach.insert(grammar.reach.end(), rule.reach.begin(), rule.reach.end());
  }
  order_rules(grammar);
  ByteClassFinder finder;
  for (uint32_t i = 0; i < grammar.states.size(); ++i)
    for (const Edge& edge : grammar.edges_of(grammar.states[i])) finder.add(i, edge);
  grammar.classes = finder.classes();
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
