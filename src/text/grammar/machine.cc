// A step in three parts: the bytes' edges are gone along; activations that are complete return to their
// callers; the rules that can begin now are called, each once, whoever calls it. Calls take at least one byte
// (GrammarBuilder sees to that) and no rule begins with itself, so each part ends.
#include "text/grammar/machine.h"

#include <algorithm>
#include <map>
#include <set>

namespace sluice::text::grammar {
namespace {

constexpr uint32_t kUnknown = UINT32_MAX;

// Counts that make no difference any more stay where they are, so that there are fewer positions.
uint32_t counted(const Grammar::Rule& rule, bool counts, uint32_t count) {
  if (!counts || (rule.most == kNoLimit && count >= rule.least)) return count;
  return count + 1;
}

void sort(std::vector<Config>& configs) {
  if (!std::is_sorted(configs.begin(), configs.end(), is_before))
    std::sort(configs.begin(), configs.end(), is_before);
}

void sort_unique(std::vector<Config>& configs) {
  sort(configs);
  configs.erase(std::unique(configs.begin(), configs.end()), configs.end());
}

}  // namespace

size_t Machine::Hash::operator()(const std::vector<Config>& configs) const {
  uint64_t hash = 0x9E3779B97F4A7C15u;
  for (const Config& config : configs) hash = hash_of(hash, config);
  return hash;
}

Machine::Machine(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  static const Frame kNone;
  frames_ = {&kNone, &kNone};
  holds_.resize(frames_.size());
  positions_.push_back(std::make_unique<Position>());
  tables_.emplace_back();
}

uint32_t Machine::start() { return find_position({{grammar_->rules[grammar_->root].start, 0, kNoCaller}}); }

uint32_t Machine::local(uint32_t state, uint32_t count) {
  return find_position({{state, count, kUnknownCaller}});
}

uint32_t Machine::behind(uint32_t frame) {
  return frame <= kNoCaller ? kDead : find_position(*frames_[frame]);
}

uint32_t Machine::step(uint32_t position, Symbol symbol) {
  if (position == kDead) return kDead;
  if (symbol < 256) symbol = grammar_->classes.first[symbol];
  if (symbol < 256 && tables_[position] && (*tables_[position])[symbol] != kUnknown)
    return (*tables_[position])[symbol];
  next_.clear();
  const Position& from = *positions_[position];
  for (const auto* configs : {&from.base, &from.called}) {
    for (const Config& config : *configs) {
      const Grammar::State& state = grammar_->states[config.state];
      const Grammar::Rule& rule = grammar_->rules[state.rule];
      for (const Edge& edge : grammar_->edges_of(state)) {
        if (edge.first > symbol || edge.last < symbol) continue;
        const uint32_t count = counted(rule, edge.counts, config.count);
        if (grammar_->leads(rule, edge.target, count)) next_.push_back({edge.target, count, config.frame});
      }
    }
    work_ += static_cast<int64_t>(configs->size());
  }
  sort_unique(next_);
  const uint32_t to = next_.empty() ? kDead : find_position(next_);
  if (symbol >= 256) return to;
  if (!tables_[position] && table_count_ < kMostTables) {
    tables_[position] = std::make_unique<Table>();
    tables_[position]->fill(kUnknown);
    ++table_count_;
  }
  if (tables_[position]) (*tables_[position])[symbol] = to;
  return to;
}

uint32_t Machine::find_position(const std::vector<Config>& configs) {
  const auto id = static_cast<uint32_t>(positions_.size());
  const auto [found, is_new] = position_ids_.try_emplace(configs, id);
  if (!is_new) return found->second;
  auto position = std::make_unique<Position>();
  return_to_callers(*position, configs);
  call_rules(*position);
  has_cut_ = has_cut_ || position->is_cut;
  work_ += static_cast<int64_t>(position->base.size() + position->called.size()) + 4;
  positions_.push_back(std::move(position));
  tables_.emplace_back();
  return id;
}

// The base: besides the ways given those to which complete activations return; without what is only complete.
void Machine::return_to_callers(Position& position, const std::vector<Config>& configs) {
  returned_.clear();
  expanded_.clear();
  for (const Config& config : configs) returned_.insert(config);
  open_.assign(configs.rbegin(), configs.rend());
  while (!open_.empty() && (returned_.size() < kMostReturns || position.base.empty())) {
    const Config config = open_.back();
    open_.pop_back();
    const Grammar::State& state = grammar_->states[config.state];
    if (state.first_edge < state.last_edge || state.first_call < state.last_call)
      position.base.push_back(config);
    if (position.base.size() >= grammar_->most_ways) {
      position.is_cut = true;
      break;
    }
    const Grammar::Rule& rule = grammar_->rules[state.rule];
    if (!state.accepting || config.count < rule.least || config.count > rule.most) continue;
    if (config.frame == kNoCaller) position.may_end = true;
    if (config.frame == kUnknownCaller) position.returns = true;
    if (!mark(expanded_, 0, config.frame)) continue;
    for (const Config& caller : *frames_[config.frame])
      if (returned_.insert(caller)) open_.push_back(caller);
    work_ += static_cast<int64_t>(frames_[config.frame]->size());
  }
  position.is_cut = position.is_cut || !open_.empty();
  sort(position.base);
}

// Marks a frame, and those that it holds. False: it was marked.
bool Machine::mark(ConfigSet& marked, uint32_t rule, uint32_t frame) {
  if (!marked.insert({rule, 0, frame})) return false;
  held_.assign(holds_[frame].begin(), holds_[frame].end());
  while (!held_.empty()) {
    const uint32_t at = held_.back();
    held_.pop_back();
    if (marked.insert({rule, 0, at})) held_.insert(held_.end(), holds_[at].begin(), holds_[at].end());
  }
  return true;
}

// Whether nothing is left to do in a rule but to return.
bool Machine::is_tail(uint32_t state) const {
  const Grammar::State& flat = grammar_->states[state];
  return flat.accepting && flat.first_edge == flat.last_edge && flat.first_call == flat.last_call;
}

void Machine::call_rules(Position& position) {
  struct Callers {
    Frame frame;
    std::vector<uint32_t> holds;
  };
  std::map<std::pair<uint32_t, uint32_t>, Callers> open;  // by (order, rule)
  size_t called = 0;
  copied_.clear();
  const auto call_from = [&](const Config& config) {
    const Grammar::State& state = grammar_->states[config.state];
    const Grammar::Rule& rule = grammar_->rules[state.rule];
    work_ += state.last_call - state.first_call;
    for (const CallEdge& call : grammar_->calls_of(state)) {
      const uint32_t count = counted(rule, call.counts, config.count);
      if (!grammar_->leads(rule, call.target, count)) continue;
      if (called >= kMostReturns && !position.called.empty()) {
        position.is_cut = true;
        return;
      }
      const auto [found, is_new] = open.try_emplace({grammar_->rules[call.rule].order, call.rule});
      called += is_new ? 1 : 0;
      auto& [frame, holds] = found->second;
      if (frame.size() >= grammar_->most_ways) {
        position.is_cut = true;
        continue;
      }
      if (!is_tail(call.target) || config.frame <= kNoCaller) {
        frame.push_back({call.target, count, config.frame});
      } else if (mark(copied_, call.rule, config.frame)) {  // the stack need not grow
        const Frame& mine = *frames_[config.frame];
        frame.insert(frame.end(), mine.begin(), mine.end());
        holds.push_back(config.frame);
        work_ += static_cast<int64_t>(mine.size());
      }
    }
  };
  // Young frames first: they hold older ones more often than the other way round.
  for (auto config = position.base.rbegin(); config != position.base.rend(); ++config) call_from(*config);
  while (!open.empty() && position.called.size() < grammar_->most_ways) {
    auto first = open.extract(open.begin());
    auto& [frame, holds] = first.mapped();
    work_ += static_cast<int64_t>(frame.size());
    sort_unique(frame);
    const uint32_t rule = first.key().second;
    const Config begins{grammar_->rules[rule].start, 0, find_frame(std::move(frame), std::move(holds))};
    const Grammar::State& state = grammar_->states[begins.state];
    if (state.first_edge < state.last_edge) position.called.push_back(begins);
    call_from(begins);
  }
  position.is_cut = position.is_cut || !open.empty();
}

uint32_t Machine::find_frame(Frame frame, std::vector<uint32_t> holds) {
  const auto [found, is_new] =
      frame_ids_.try_emplace(std::move(frame), static_cast<uint32_t>(frames_.size()));
  if (is_new) {
    frames_.push_back(&found->first);
    holds_.push_back(std::move(holds));
  }
  return found->second;
}

// `copies` has what is there already, those of no caller among it.
uint32_t Machine::copy_frame(const Machine& from, uint32_t frame, Copies& copies) {
  // Frames are older than those that they are part of, so ascending numbers do; the needed ones first.
  std::set<uint32_t> needed = {frame};
  for (std::vector<uint32_t> work = {frame}; !work.empty();) {
    const uint32_t at = work.back();
    work.pop_back();
    if (copies.contains(at)) continue;
    for (const Config& config : *from.frames_[at])
      if (needed.insert(config.frame).second) work.push_back(config.frame);
  }
  for (const uint32_t at : needed) {
    if (copies.contains(at)) continue;
    Frame copy = *from.frames_[at];
    for (Config& config : copy) config.frame = copies.at(config.frame);
    sort_unique(copy);
    copies[at] = find_frame(std::move(copy));
  }
  return copies.at(frame);
}

std::vector<Config> Machine::copy_base(const Machine& from, uint32_t position, Copies& copies) {
  std::vector<Config> base = from.positions_[position]->base;
  for (Config& config : base) config.frame = copy_frame(from, config.frame, copies);
  sort_unique(base);
  return base;
}

// Without the ways that were only complete, so what these led to is told; and found by these ways alone it
// need not be an end.
uint32_t Machine::new_position(const std::vector<Config>& base, bool may_end, bool returns) {
  position_ids_.erase(base);
  const uint32_t number = find_position(base);
  Position& position = *positions_[number];
  position.may_end = position.may_end || may_end;
  position.returns = position.returns || returns;
  position_ids_.erase(base);
  return number;
}

uint32_t Machine::called_by(uint32_t position, uint32_t frame) {
  if (position == kDead) return kDead;
  Copies copies = {{kUnknownCaller, frame}, {kNoCaller, kNoCaller}};
  std::vector<Config> base = copy_base(*this, position, copies);
  const bool returns = positions_[position]->returns;
  if (returns) base.insert(base.end(), frames_[frame]->begin(), frames_[frame]->end());
  sort_unique(base);
  return new_position(base, returns && frame == kNoCaller, returns && frame == kUnknownCaller);
}

Machine Machine::copy_of(uint32_t position, uint32_t& number) const {
  Machine fresh(grammar_);
  fresh.has_cut_ = has_cut_;
  number = kDead;
  if (position == kDead) return fresh;
  Copies copies = {{kUnknownCaller, kUnknownCaller}, {kNoCaller, kNoCaller}};
  const Position& old = *positions_[position];
  number = fresh.new_position(fresh.copy_base(*this, position, copies), old.may_end, old.returns);
  return fresh;
}

uint32_t Machine::restart(uint32_t position) {
  uint32_t number = kDead;
  *this = copy_of(position, number);
  return number;
}

}  // namespace sluice::text::grammar
