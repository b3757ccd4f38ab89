// A TokenConstraint that follows a grammar, and the masks that it and its like have found.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "text/constraint.h"
#include "text/grammar/machine.h"
#include "text/grammar/vocabulary.h"

namespace sluice::text::grammar {

/// The tokens that go on from one state of a rule, whoever called the rule.
struct LocalMask {
  std::vector<uint32_t> bits;  ///< of the tokens; empty: `tokens` lists them
  std::vector<int32_t> tokens;
  std::vector<uint32_t> exits;  ///< nodes of the trie at which the rule returns while tokens go on
};

/// A grammar with what is known of it for a vocabulary. Followers of one request share it.
class CompiledGrammar {
 public:
  CompiledGrammar(std::shared_ptr<const ConstraintVocabulary> vocabulary, Grammar grammar);

  const ConstraintVocabulary::Impl& vocabulary() const { return vocabulary_->impl(); }
  const std::shared_ptr<const Grammar>& grammar() const { return grammar_; }

  using Key = std::tuple<uint32_t, uint32_t, uint32_t>;  ///< state; counts still needed; counts still allowed
  /// The tokens as followers walk them. Where the grammar takes many bytes for the same, so does this tree,
  /// which then has far fewer nodes than the vocabulary's.
  const Trie& trie() const { return merged_ ? *merged_ : vocabulary().trie; }
  /// A merged tree of so few that a walk of all needs no parts that come again.
  bool has_few_nodes() const { return merged_ && merged_->size() <= kFewNodes; }
  size_t bytes() const;
  std::shared_ptr<const LocalMask> find(const Key& key) const;
  void keep(const Key& key, std::shared_ptr<const LocalMask> mask);
  /// Work that followers may still do beyond what each token has.
  std::atomic<int64_t>& spare_work() { return spare_work_; }

 private:
  // A tree is merged where that is likely to be worth its while, and kept where it was.
  static constexpr int kFewClasses = 16;
  static constexpr uint32_t kMuchFewer = 4, kFewNodes = 2'000;
  static constexpr int64_t kSpareWork = 2'000'000, kSpareWorkOfFewNodes = 200'000;
  static constexpr size_t kMostBytes = size_t{32} << 20;

  std::shared_ptr<const ConstraintVocabulary> vocabulary_;
  std::shared_ptr<const Grammar> grammar_;
  std::optional<Trie> merged_;
  mutable std::mutex mutex_;
  std::map<Key, std::shared_ptr<const LocalMask>> masks_;
  size_t bytes_ = 0;
  std::atomic<int64_t> spare_work_ = kSpareWork;
};

class Follower : public TokenConstraint {
 public:
  explicit Follower(std::shared_ptr<CompiledGrammar> compiled);

  bool allowed(std::span<uint32_t> bits) override;
  bool accept(int32_t token) override;
  bool may_end() const override { return machine_.position(position_).may_end; }
  std::unique_ptr<TokenConstraint> clone() const override;
  size_t bytes() const override { return compiled_->bytes(); }

  /// Whether there were more ways than are followed.
  bool has_cut() const { return machine_.has_cut(); }
  /// Finds the masks of the first position and of states that many tokens go on from, so that the first
  /// tokens need not wait for them.
  void warm_up();

 private:
  // What one allowed() may take, in ways followed: a hostile grammar must not hold up everybody. Each may
  // take kWorkAToken, the first ones more out of what all followers of a grammar share (CompiledGrammar),
  // since they find what comes again. Tokens that were not reached are not allowed; those of one byte always
  // are reached.
  static constexpr int64_t kWorkAToken = 800, kMostWork = 100'000, kMostWorkOfFewNodes = 10'000;
  // Where a walk of few nodes ends before its end, this many parts are added that are known from before, some
  // of them found now.
  static constexpr int kMostParts = 32, kMostNewParts = 2;
  static constexpr int64_t kWorkOfPart = 4'000;

  void add_known_parts(const Position& position);
  std::shared_ptr<const LocalMask> find_part(const CompiledGrammar::Key& key, uint32_t position);
  void add_local(const LocalMask& mask);
  void add_config(const Config& config);
  void add_string(const Config& config, const Grammar::Rule& rule);
  void add_level_by_level(uint32_t from, bool past_cuts);
  void add_walk(const Trie& trie, uint32_t at, uint32_t end, uint32_t from);
  void add_single_bytes();
  CompiledGrammar::Key key_of(uint32_t state, uint32_t count) const;
  std::shared_ptr<const LocalMask> local_mask(uint32_t state, uint32_t count);
  uint32_t follow(int32_t token);
  uint32_t follow_bytes(uint32_t from, std::string_view bytes);
  uint32_t follow_apart(std::string_view bytes);
  int64_t work() const { return machine_.work() + visits_ / 64; }
  bool is_exhausted() const { return work() > work_end_; }
  void begin_work();
  void end_work();
  void set(int32_t token) { bits_[static_cast<size_t>(token) / 32] |= 1u << (token % 32); }

  std::shared_ptr<CompiledGrammar> compiled_;
  Machine machine_;
  uint32_t position_;
  int64_t visits_ = 0;  ///< of the trie's nodes; 64 of them are about the work of a way
  int64_t work_before_ = 0, work_end_ = 0;
  struct Children {
    uint32_t begin, end, position;  ///< nodes of the tree, and where the text above them leads
  };
  std::vector<Children> level_;
  std::vector<uint32_t> path_;  ///< positions along the trie, by depth
  std::vector<uint32_t> bits_;  ///< of the position `bits_of_`
  uint32_t bits_of_ = UINT32_MAX;
};

}  // namespace sluice::text::grammar
