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
  while (!open_.empty() && returned_.size() < kMostReturns) {
    const Config config = open_.back();
    open_.pop_back();
    const Grammar::State& state = grammar_->states[config.state];
    if (state.first_edge < state.last_edge || state.first_call < state.last_call)
      position.base.push_back(config);
    if (position.base.size() >= kMostWays) break;
    const Grammar::Rule& rule = grammar_->rules[state.rule];
    if (!state.accepting || config.count < rule.least || config.count > rule.most) continue;
    if (config.frame == kNoCaller) position.may_end = true;
    if (config.frame == kUnknownCaller) position.returns = true;
    if (!mark(expanded_, 0, config.frame)) continue;
    for (const Config& caller : *frames_[config.frame])
      if (returned_.insert(caller)) open_.push_back(caller);
    work_ += static_cast<int64_t>(frames_[config.frame]->size());
  }
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
      if (called >= kMostReturns) return;
      const auto [found, is_new] = open.try_emplace({grammar_->rules[call.rule].order, call.rule});
      called += is_new ? 1 : 0;
      auto& [frame, holds] = found->second;
      if (frame.size() >= kMostWays) continue;
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
  while (!open.empty() && position.called.size() < kMostWays) {
    auto first = open.extract(open.begin());
    auto& [frame, holds] = first.mapped();
    work_ += static_cast<int64_t>(frame.size());
    sort_unique(frame);
    const uint32_t rule = first.key().second;
    position.called.push_back(
        {grammar_->rules[rule].start, 0, find_frame(std::move(frame), std::move(holds))});
    call_from(position.called.back());
  }
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

uint32_t Machine::copy_frame(const Machine& from, uint32_t frame,
                             std::unordered_map<uint32_t, uint32_t>& copied) {
  // Frames are older than those that they are part of, so ascending numbers do; the needed ones first.
  std::set<uint32_t> needed = {frame};
  for (std::vector<uint32_t> work = {frame}; !work.empty();) {
    const uint32_t at = work.back();
    work.pop_back();
    if (copied.contains(at)) continue;
    for (const Config& config : *from.frames_[at])
      if (needed.insert(config.frame).second) work.push_back(config.frame);
  }
  for (const uint32_t at : needed) {
    if (at <= kNoCaller || copied.contains(at)) continue;
    Frame copy = *from.frames_[at];
    for (Config& config : copy)
      if (config.frame > kNoCaller) config.frame = copied.at(config.frame);
    sort_unique(copy);
    copied[at] = find_frame(std::move(copy));
  }
  return frame <= kNoCaller ? frame : copied.at(frame);
}

Machine Machine::copy_of(uint32_t position, uint32_t& number) const {
  Machine fresh(grammar_);
  number = kDead;
  if (position == kDead) return fresh;
  std::unordered_map<uint32_t, uint32_t> copied;
  const Position& old = *positions_[position];
  std::vector<Config> base = old.base;
  for (Config& config : base) config.frame = fresh.copy_frame(*this, config.frame, copied);
  sort_unique(base);
  number = fresh.find_position(base);
  fresh.positions_[number]->may_end = old.may_end;
  fresh.positions_[number]->returns = old.returns;
  fresh.position_ids_.erase(base);  // found by these ways alone it need not be an end
  return fresh;
}

uint32_t Machine::restart(uint32_t position) {
  uint32_t number = kDead;
  *this = copy_of(position, number);
  return number;
}

}  // namespace sluice::text::grammar
