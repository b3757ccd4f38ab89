// Follows a grammar byte by byte: an automaton with a stack, taken in all its ways at once. The stacks of all
// ways share their frames (a graph, as in generalised parsing), so ways that come together stay together.
// Knows grammars; tokens are not its business.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "text/grammar/config.h"
#include "text/grammar/grammar.h"

namespace sluice::text::grammar {

/// The places to which an activation of a rule returns; several when several ways called it here.
using Frame = std::vector<Config>;

struct Position {
  std::vector<Config> base;    ///< sorted; what the last byte led to, and what that returned to
  std::vector<Config> called;  ///< the beginnings of rules called there, if bytes may follow
  bool may_end = false;        ///< the whole text may end here
  bool returns = false;        ///< a way has come back to the unknown caller
  bool is_cut = false;         ///< there were more ways than are followed

  bool alive() const { return !base.empty() || may_end || returns; }
};

class Machine {
 public:
  static constexpr uint32_t kUnknownCaller = 0;  ///< frame: where to is not known (local())
  static constexpr uint32_t kNoCaller = 1;       ///< frame: the root's
  static constexpr uint32_t kDead = 0;           ///< position: nothing matches

  explicit Machine(std::shared_ptr<const Grammar> grammar);

  /// Positions are numbers that stay valid until restart().
  uint32_t start();
  uint32_t step(uint32_t position, Symbol symbol);
  /// Where the callers in a frame go on.
  uint32_t behind(uint32_t frame);
  /// A state of a rule whose caller is not known.
  uint32_t local(uint32_t state, uint32_t count);
  /// A position that local() led to, if the callers in a frame are the unknown ones.
  uint32_t called_by(uint32_t position, uint32_t frame);
  const Position& position(uint32_t id) const { return *positions_[id]; }

  /// Whether so much has been kept that it is time to restart.
  bool is_large() const { return positions_.size() > kManyPositions || frames_.size() > kManyFrames; }
  /// Forgets everything but one position; returns its new number.
  uint32_t restart(uint32_t position);
  /// A machine that knows one position only, whose number there is put into `number`.
  Machine copy_of(uint32_t position, uint32_t& number) const;
  /// Work done so far, in ways followed.
  int64_t work() const { return work_; }
  /// Whether any position is cut. What a way leads to may then depend on those beside it.
  bool has_cut() const { return has_cut_; }

 private:
  static constexpr size_t kManyPositions = 2048, kManyFrames = 8192, kMostTables = 4096;
  static constexpr size_t kMostReturns = 16384;

  struct Hash {
    size_t operator()(const std::vector<Config>& configs) const;
  };
  using Table = std::array<uint32_t, 256>;

  uint32_t find_position(const std::vector<Config>& configs);
  uint32_t new_position(const std::vector<Config>& base, bool may_end, bool returns);
  uint32_t find_frame(Frame frame, std::vector<uint32_t> holds = {});
  void return_to_callers(Position& position, const std::vector<Config>& configs);
  bool mark(ConfigSet& marked, uint32_t rule, uint32_t frame);
  void call_rules(Position& position);
  bool is_tail(uint32_t state) const;
  using Copies = std::unordered_map<uint32_t, uint32_t>;
  uint32_t copy_frame(const Machine& from, uint32_t frame, Copies& copies);
  std::vector<Config> copy_base(const Machine& from, uint32_t position, Copies& copies);

  std::shared_ptr<const Grammar> grammar_;
  std::vector<const Frame*> frames_;
  std::vector<std::vector<uint32_t>> holds_;  ///< by frame: others all of whose ways are among its own
  std::unordered_map<Frame, uint32_t, Hash> frame_ids_;
  std::vector<std::unique_ptr<Position>> positions_;
  std::unordered_map<std::vector<Config>, uint32_t, Hash> position_ids_;
  std::vector<std::unique_ptr<Table>> tables_;  ///< by position: where a byte leads; null: not asked yet
  size_t table_count_ = 0;
  int64_t work_ = 0;
  bool has_cut_ = false;
  ConfigSet returned_;          ///< of return_to_callers()
  ConfigSet expanded_;          ///< frames there
  ConfigSet copied_;            ///< frames in call_rules(), by the rule that is called
  std::vector<uint32_t> held_;  ///< of mark()
  std::vector<Config> open_;    ///< likewise
  std::vector<Config> next_;    ///< of step()
};

}  // namespace sluice::text::grammar
