// A step in three parts: the bytes' edges are gone along; activations that are complete return to their
// callers; the rules that can begin now are called, each once, whoever calls it. Calls take at least one byte
// (GrammarBuilder sees to that) and no rule begins with itself, so each part ends.
#include "text/grammar/machine.h"

#include <algorithm>
#include <set>

namespace sluice::text::grammar {
namespace {

constexpr uint32_t kUnknown = UINT32_MAX;

// Counts that make no difference any more stay where they are, so that there are fewer positions.
uint32_t counted(const Grammar::Rule& rule, bool counts, uint32_t count) {
  if (!counts || (rule.most == kNoLimit && count >= rule.least)) return count;
  return count + 1;
}

void sort_unique(std::vector<Config>& configs) {
  std::sort(configs.begin(), configs.end());
  configs.erase(std::unique(configs.begin(), configs.end()), configs.end());
}

}  // namespace

size_t Machine::Hash::operator()(const std::vector<Config>& configs) const {
  uint64_t hash = 0x9E3779B97F4A7C15u;
  for (const Config& config : configs) {
    for (const uint64_t value : {config.state, config.count, config.frame}) {
      hash = (hash ^ value) * 0xD6E8FEB86659FD93u;
      hash ^= hash >> 32;
    }
  }
  return hash;
}

Machine::Machine(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  static const Frame kNone;
  frames_ = {&kNone, &kNone};
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
  if (symbol < 256 && tables_[position] && (*tables_[position])[symbol] != kUnknown)
    return (*tables_[position])[symbol];
  std::vector<Config> next;
  const Position& from = *positions_[position];
  for (const auto* configs : {&from.base, &from.called}) {
    for (const Config& config : *configs) {
      const Grammar::State& state = grammar_->states[config.state];
      const Grammar::Rule& rule = grammar_->rules[state.rule];
      for (const Edge& edge : grammar_->edges_of(state)) {
        if (edge.first > symbol || edge.last < symbol) continue;
        const uint32_t count = counted(rule, edge.counts, config.count);
        if (grammar_->leads(rule, edge.target, count)) next.push_back({edge.target, count, config.frame});
      }
    }
    work_ += static_cast<int64_t>(configs->size());
  }
  const uint32_t to = next.empty() ? kDead : find_position(std::move(next));
  if (symbol >= 256) return to;
  if (!tables_[position] && table_count_ < kMostTables) {
    tables_[position] = std::make_unique<Table>();
    tables_[position]->fill(kUnknown);
    ++table_count_;
  }
  if (tables_[position]) (*tables_[position])[symbol] = to;
  return to;
}

uint32_t Machine::find_position(std::vector<Config> configs) {
  sort_unique(configs);
  if (const auto found = position_ids_.find(configs); found != position_ids_.end()) return found->second;
  std::vector<Config> key = configs;
  auto position = std::make_unique<Position>();
  return_to_callers(*position, configs);
  position->base = std::move(configs);
  call_rules(*position);
  work_ += static_cast<int64_t>(position->base.size() + position->called.size()) + 4;
  const auto id = static_cast<uint32_t>(positions_.size());
  positions_.push_back(std::move(position));
  tables_.emplace_back();
  position_ids_.emplace(std::move(key), id);
  return id;
}

// Adds the places to which complete activations return; drops what is only complete.
void Machine::return_to_callers(Position& position, std::vector<Config>& configs) {
  std::set<Config> all(configs.begin(), configs.end());
  std::vector<Config> work(configs.rbegin(), configs.rend());
  configs.clear();
  while (!work.empty() && all.size() < kMostReturns) {
    const Config config = work.back();
    work.pop_back();
    const Grammar::State& state = grammar_->states[config.state];
    if (state.first_edge < state.last_edge || state.first_call < state.last_call) configs.push_back(config);
    if (configs.size() >= kMostWays) break;
    const Grammar::Rule& rule = grammar_->rules[state.rule];
    if (!state.accepting || config.count < rule.least || config.count > rule.most) continue;
    if (config.frame == kNoCaller) position.may_end = true;
    if (config.frame == kUnknownCaller) position.returns = true;
    for (const Config& caller : *frames_[config.frame])
      if (all.insert(caller).second) work.push_back(caller);
    work_ += static_cast<int64_t>(frames_[config.frame]->size());
  }
  std::sort(configs.begin(), configs.end());
}

// Whether nothing is left to do in a rule but to return.
bool Machine::is_tail(uint32_t state) const {
  const Grammar::State& flat = grammar_->states[state];
  return flat.accepting && flat.first_edge == flat.last_edge && flat.first_call == flat.last_call;
}

void Machine::call_rules(Position& position) {
  std::set<std::pair<uint32_t, uint32_t>> open;  // (order, rule)
  std::unordered_map<uint32_t, Frame> callers;
  const auto call_from = [&](const Config& config) {
    const Grammar::State& state = grammar_->states[config.state];
    const Grammar::Rule& rule = grammar_->rules[state.rule];
    work_ += state.last_call - state.first_call;
    for (const CallEdge& call : grammar_->calls_of(state)) {
      const uint32_t count = counted(rule, call.counts, config.count);
      if (!grammar_->leads(rule, call.target, count)) continue;
      if (callers.size() >= kMostReturns) return;
      Frame& frame = callers[call.rule];
      if (frame.size() >= kMostWays) continue;
      open.emplace(grammar_->rules[call.rule].order, call.rule);
      if (is_tail(call.target) && config.frame > kNoCaller) {  // the stack need not grow
        const Frame& mine = *frames_[config.frame];
        frame.insert(frame.end(), mine.begin(), mine.end());
      } else {
        frame.push_back({call.target, count, config.frame});
      }
    }
  };
  for (const Config& config : position.base) call_from(config);
  while (!open.empty() && position.called.size() < kMostWays) {
    const uint32_t rule = open.begin()->second;
    open.erase(open.begin());
    Frame frame = std::move(callers[rule]);
    sort_unique(frame);
    position.called.push_back({grammar_->rules[rule].start, 0, find_frame(std::move(frame))});
    call_from(position.called.back());
  }
}

uint32_t Machine::find_frame(Frame frame) {
  const auto [found, is_new] =
      frame_ids_.try_emplace(std::move(frame), static_cast<uint32_t>(frames_.size()));
  if (is_new) frames_.push_back(&found->first);
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
  const std::vector<Config> key = base;
  number = fresh.find_position(std::move(base));
  fresh.positions_[number]->may_end = old.may_end;
  fresh.positions_[number]->returns = old.returns;
  fresh.position_ids_.erase(key);  // found by these ways alone it need not be an end
  return fresh;
}

uint32_t Machine::restart(uint32_t position) {
  uint32_t number = kDead;
  *this = copy_of(position, number);
  return number;
}

}  // namespace sluice::text::grammar
