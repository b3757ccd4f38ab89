// A mask is put together from parts that come again. From one state of a rule, most tokens either stay within
// the rule (and what it calls) or die: that is the same whoever called, so it is found once (LocalMask). What
// remains are tokens that leave the rule in their middle; for them the callers are followed, from the node of
// the trie where the rule was left.
// Where a grammar tells few bytes apart (ByteClasses), the tree of tokens is small: it is walked as a whole.
#include "text/grammar/follower.h"

#include <algorithm>
#include <bit>

namespace sluice::text::grammar {

CompiledGrammar::CompiledGrammar(std::shared_ptr<const ConstraintVocabulary> vocabulary, Grammar grammar)
    : vocabulary_(std::move(vocabulary)), grammar_(std::make_shared<const Grammar>(std::move(grammar))) {
  const Trie& all = vocabulary_->impl().trie;
  if (grammar_->classes.count() <= kFewClasses)
    merged_ = all.merged(grammar_->classes, all.size() / kMuchFewer);
  if (has_few_nodes()) spare_work_ = kSpareWorkOfFewNodes;
}

size_t CompiledGrammar::bytes() const {
  const std::lock_guard lock(mutex_);
  return grammar_->bytes() + bytes_ + (merged_ ? merged_->bytes() : 0);
}

std::shared_ptr<const LocalMask> CompiledGrammar::find(const Key& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = masks_.find(key);
  return found == masks_.end() ? nullptr : found->second;
}

void CompiledGrammar::keep(const Key& key, std::shared_ptr<const LocalMask> mask) {
  const size_t bytes = 4 * (mask->bits.size() + mask->tokens.size() + mask->exits.size()) + 128;
  const std::lock_guard lock(mutex_);
  if (bytes_ + bytes > kMostBytes) {
    masks_.clear();
    bytes_ = 0;
  }
  if (masks_.emplace(key, std::move(mask)).second) bytes_ += bytes;
}

Follower::Follower(std::shared_ptr<CompiledGrammar> compiled)
    : compiled_(std::move(compiled)),
      machine_(compiled_->grammar()),
      position_(machine_.start()),
      path_(compiled_->vocabulary().trie.longest() + 1),
      bits_(compiled_->vocabulary().words()) {}

std::unique_ptr<TokenConstraint> Follower::clone() const {
  auto copy = std::make_unique<Follower>(compiled_);
  copy->machine_ = machine_.copy_of(position_, copy->position_);
  return copy;
}

void Follower::begin_work() {
  const int64_t spare = std::max<int64_t>(compiled_->spare_work().load(std::memory_order_relaxed), 0);
  work_before_ = work();
  const int64_t most = compiled_->has_few_nodes() ? kMostWorkOfFewNodes : kMostWork;
  work_end_ = work_before_ + std::min(kWorkAToken + spare, most);
}

void Follower::end_work() {
  const int64_t beyond = work() - work_before_ - kWorkAToken;
  if (beyond > 0) compiled_->spare_work().fetch_sub(beyond, std::memory_order_relaxed);
}

bool Follower::allowed(std::span<uint32_t> bits) {
  if (bits_of_ != position_) {
    begin_work();
    std::fill(bits_.begin(), bits_.end(), 0);
    const Position& position = machine_.position(position_);
    if (compiled_->has_few_nodes()) {
      add_level_by_level(position_, true);
      if (is_exhausted()) add_known_parts(position);
    } else {
      for (const Config& config : position.base) add_config(config);
    }
    const Grammar& grammar = *compiled_->grammar();
    for (size_t i = 0; i < grammar.tags.size(); ++i)
      if (machine_.position(machine_.step(position_, static_cast<Symbol>(kFirstTag + i))).alive())
        set(grammar.tags[i]);
    if (position.may_end)
      for (const int32_t token : compiled_->vocabulary().ends) set(token);
    if (is_exhausted()) add_single_bytes();
    bits_of_ = position_;
    end_work();
  }
  std::fill(bits.begin(), bits.end(), 0);
  std::copy(bits_.begin(), bits_.end(), bits.begin());
  return true;
}

// Of what a walk did not reach, tokens that stay within a rule; few at a time are new, and none is looked at
// for long.
void Follower::add_known_parts(const Position& position) {
  int parts = kMostParts, new_parts = kMostNewParts;
  CompiledGrammar::Key last{};  // ways that differ in their callers alone stand side by side
  for (const Config& config : position.base) {
    const CompiledGrammar::Key key = key_of(config.state, config.count);
    if (key == last) continue;
    last = key;
    std::shared_ptr<const LocalMask> part = compiled_->find(key);
    if (!part && new_parts-- > 0) part = find_part(key, machine_.local(config.state, config.count));
    if (part) add_local(*part);
    if (--parts == 0) break;
  }
}

std::shared_ptr<const LocalMask> Follower::find_part(const CompiledGrammar::Key& key, uint32_t position) {
  auto part = std::make_shared<LocalMask>();
  part->bits.resize(bits_.size());
  std::swap(bits_, part->bits);
  work_end_ = work() + kWorkOfPart;
  add_level_by_level(position, false);
  std::swap(bits_, part->bits);
  compiled_->keep(key, part);
  return part;
}

void Follower::add_local(const LocalMask& mask) {
  for (size_t i = 0; i < mask.bits.size(); ++i) bits_[i] |= mask.bits[i];
  for (const int32_t token : mask.tokens) set(token);
}

void Follower::add_config(const Config& config) {
  const Grammar& grammar = *compiled_->grammar();
  const Grammar::Rule& rule = grammar.rule_of(config.state);
  if (rule.string_kind >= 0) return add_string(config, rule);
  const std::shared_ptr<const LocalMask> mask = local_mask(config.state, config.count);
  add_local(*mask);
  if (mask->exits.empty()) return;
  const uint32_t behind = machine_.behind(config.frame);
  const Trie& trie = compiled_->trie();
  for (const uint32_t node : mask->exits) {
    if (is_exhausted()) return;
    add_walk(trie, node + 1, trie.node(node).end, behind);
  }
}

// Within a JSON string: masks that the vocabulary keeps, cut to the characters that there is room for.
void Follower::add_string(const Config& config, const Grammar::Rule& rule) {
  const ConstraintVocabulary::Impl& vocabulary = compiled_->vocabulary();
  const StringMask& mask =
      vocabulary.strings.get(static_cast<JsonStringKind>(rule.string_kind), config.state - rule.start);
  const uint32_t room = rule.most == kNoLimit ? kNoLimit : rule.most - config.count;
  const uint32_t need = rule.least > config.count ? rule.least - config.count : 0;
  const std::vector<uint32_t>* whole = room >= mask.most ? &mask.all : nullptr;
  uint32_t done = 0;  // tokens with more than so many characters remain
  if (whole == nullptr && room > 0) {
    const auto power = static_cast<uint32_t>(std::bit_width(room)) - 1;
    whole = &mask.up_to[power];
    done = 1u << power;
  }
  if (whole != nullptr)
    for (size_t i = 0; i < whole->size(); ++i) bits_[i] |= (*whole)[i];
  if (room < mask.most) {
    auto next = room == 0
                    ? mask.inside.begin()
                    : std::upper_bound(mask.inside.begin(), mask.inside.end(), std::pair(done, INT32_MAX));
    for (; next != mask.inside.end() && next->first <= room; ++next) set(next->second);
  }
  const uint32_t behind = machine_.behind(config.frame);
  for (const StringMask::Exit& exit : mask.exits) {
    if (exit.characters < need || exit.characters > room) continue;
    for (const int32_t token : vocabulary.trie.tokens_at(exit.node)) set(token);
    if (behind != Machine::kDead && vocabulary.trie.has_children(exit.node))
      add_walk(vocabulary.trie, exit.node + 1, vocabulary.trie.node(exit.node).end, behind);
  }
}

void Follower::add_single_bytes() {
  const Trie& trie = compiled_->trie();
  for (uint32_t at = 0; at < trie.size(); at = trie.node(at).end)
    if (machine_.position(machine_.step(position_, trie.node(at).byte)).alive()) trie.set_tokens(at, bits_);
}

// Tokens at the nodes [at, end) of a tree, which are all that stand below one, from a position there.
void Follower::add_walk(const Trie& trie, uint32_t at, uint32_t end, uint32_t from) {
  if (at == end) return;
  path_[trie.node(at).depth - 1] = from;
  ++visits_;
  while (at < end && !is_exhausted()) {
    const Trie::Node& here = trie.node(at);
    visits_ += 4;  // each time again, unlike what is found for a state
    const uint32_t next = machine_.step(path_[here.depth - 1], here.byte);
    if (!machine_.position(next).alive()) {
      at = here.end;
      continue;
    }
    path_[here.depth] = next;
    trie.set_tokens(at, bits_);
    ++at;
  }
}

// All tokens from the position, the short ones first: where the work ends before its end, long ones are
// missing. Not past cuts: what is behind them depends on what was followed before, and is not to be kept.
void Follower::add_level_by_level(uint32_t from, bool past_cuts) {
  const Trie& trie = compiled_->trie();
  level_.assign({{0, trie.size(), from}});
  for (size_t i = 0; i < level_.size() && !is_exhausted(); ++i) {
    const auto [begin, end, position] = level_[i];
    for (uint32_t at = begin; at < end; at = trie.node(at).end) {
      visits_ += 4;
      const uint32_t next = machine_.step(position, trie.node(at).byte);
      const Position& reached = machine_.position(next);
      if (!reached.alive()) continue;
      trie.set_tokens(at, bits_);
      if (trie.has_children(at) && (past_cuts || !reached.is_cut))
        level_.push_back({at + 1, trie.node(at).end, next});
    }
  }
}

CompiledGrammar::Key Follower::key_of(uint32_t state, uint32_t count) const {
  const Trie& trie = compiled_->trie();
  const Grammar::Rule& rule = compiled_->grammar()->rule_of(state);
  // A token has no more counts than bytes, and beyond them only how far the rule's end is matters.
  const auto near = [&](uint32_t counts, uint32_t far) {
    return static_cast<uint32_t>(std::min<uint64_t>(counts, uint64_t{trie.longest()} + far + 1));
  };
  const uint32_t need = rule.least > count ? near(rule.least - count, rule.far_longest) : 0;
  const uint32_t room = rule.most == kNoLimit ? kNoLimit : near(rule.most - count, rule.far_shortest);
  return {state, need, room};
}

std::shared_ptr<const LocalMask> Follower::local_mask(uint32_t state, uint32_t count) {
  const Trie& trie = compiled_->trie();
  const CompiledGrammar::Key key = key_of(state, count);
  if (auto known = compiled_->find(key)) return known;
  LocalMask mask;
  path_[0] = machine_.local(state, count);
  for (uint32_t at = 0; at < trie.size();) {
    const Trie::Node& here = trie.node(at);
    if (is_exhausted()) break;
    ++visits_;
    const uint32_t next = machine_.step(path_[here.depth - 1], here.byte);
    const Position& position = machine_.position(next);
    if (!position.alive()) {
      at = here.end;
      continue;
    }
    path_[here.depth] = next;
    const auto tokens = trie.tokens_at(at);
    mask.tokens.insert(mask.tokens.end(), tokens.begin(), tokens.end());
    if (position.returns && !position.is_cut && trie.has_children(at)) mask.exits.push_back(at);
    at = position.base.empty() || position.is_cut ? here.end : at + 1;  // nothing behind a cut is kept
  }
  if (mask.tokens.size() > bits_.size()) {
    mask.bits.resize(bits_.size());
    for (const int32_t token : mask.tokens) mask.bits[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
    mask.tokens = {};
  }
  auto found = std::make_shared<const LocalMask>(std::move(mask));
  if (!is_exhausted()) compiled_->keep(key, found);
  return found;
}

// Where a token leads, or kDead.
uint32_t Follower::follow(int32_t token) {
  const ConstraintVocabulary::Impl& vocabulary = compiled_->vocabulary();
  if (token < 0 || static_cast<size_t>(token) >= vocabulary.ends_generation.size()) return Machine::kDead;
  const std::vector<int32_t>& tags = compiled_->grammar()->tags;
  if (const auto tag = std::find(tags.begin(), tags.end(), token); tag != tags.end())
    return machine_.step(position_, static_cast<Symbol>(kFirstTag + (tag - tags.begin())));
  const std::string_view bytes = vocabulary.bytes(token);
  if (bytes.empty()) return Machine::kDead;
  const uint32_t at = follow_bytes(position_, bytes);
  return !machine_.position(at).alive() && machine_.has_cut() ? follow_apart(bytes) : at;
}

uint32_t Follower::follow_bytes(uint32_t from, std::string_view bytes) {
  for (const char c : bytes) from = machine_.step(from, static_cast<uint8_t>(c));
  return from;
}

// Where so many ways lead on that some are cut, those together may lose the one by which a mask has a token:
// each by itself then, as masks are put together. The first that takes the token is gone on with.
uint32_t Follower::follow_apart(std::string_view bytes) {
  const std::vector<Config> ways = machine_.position(position_).base;
  for (const Config& config : ways) {
    uint32_t at = machine_.local(config.state, config.count);
    for (size_t i = 0; i < bytes.size() && at != Machine::kDead; ++i) {
      at = machine_.step(at, static_cast<uint8_t>(bytes[i]));
      if (!machine_.position(at).returns || i + 1 == bytes.size()) continue;
      const uint32_t left = follow_bytes(machine_.behind(config.frame), bytes.substr(i + 1));
      if (machine_.position(left).alive()) return left;
    }
    if (machine_.position(at).alive()) return machine_.called_by(at, config.frame);
  }
  return Machine::kDead;
}

bool Follower::accept(int32_t token) {
  if (token >= 0 && static_cast<size_t>(token) < compiled_->vocabulary().ends_generation.size() &&
      compiled_->vocabulary().ends_generation[token])
    return may_end();
  const uint32_t next = follow(token);
  if (!machine_.position(next).alive()) return false;
  position_ = next;
  if (machine_.is_large()) {
    position_ = machine_.restart(position_);
    bits_of_ = UINT32_MAX;
  }
  return true;
}

void Follower::warm_up() {
  std::vector<uint32_t> bits(bits_.size());
  allowed(bits);
  const Grammar& grammar = *compiled_->grammar();
  constexpr int kMostStates = 12, kManyBytes = 64;
  int left = kMostStates;
  for (uint32_t i = 0; i < grammar.states.size() && left > 0; ++i) {
    if (grammar.rule_of(i).string_kind >= 0) continue;
    int bytes = 0;
    for (const Edge& edge : grammar.edges_of(grammar.states[i]))
      bytes += std::min<int>(edge.last, 127) - std::min<int>(edge.first, 128) + 1;
    if (bytes < kManyBytes) continue;
    begin_work();
    local_mask(i, 0);
    end_work();
    --left;
  }
  position_ = machine_.restart(position_);
  bits_of_ = UINT32_MAX;
}

}  // namespace sluice::text::grammar
