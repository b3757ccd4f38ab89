// Steps of an executable over seeded random tokens, timed: what bench and profile measure with. The token at
// a position of a sequence is always the same one, so a context once computed serves every later repetition.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/batch.h"
#include "engine/kv_pool.h"
#include "program/backend.h"

namespace sluice::cli {

/// Reads memory between steps, about an eighth of what the steps read: always so many bytes after so many
/// steps, so that both spend the same share of their time in a machine's quick and slow moments.
class ReadTurns {
 public:
  /// step_bytes: what a step reads. Does nothing where the backend's bandwidth does not change, and for steps
  /// that read so little that a cache may hold it, which readings would turn out.
  ReadTurns(program::Backend& backend, double step_bytes);

  void after_step();
  /// Of all readings together; 0: there were none.
  double bytes_per_second() const { return probe_ != nullptr ? probe_->bytes_per_second() : 0; }
  int64_t memory_bytes() const { return probe_ != nullptr ? probe_->memory_bytes() : 0; }

 private:
  std::unique_ptr<program::BandwidthProbe> probe_;
  int64_t turn_bytes_ = 0, turn_steps_ = 1, steps_ = 0;
};

class MeasuredSteps {
 public:
  /// For an executable with max_rows rows a step, one output a sequence, and pages for `sequences` sequences
  /// of `context` tokens.
  MeasuredSteps(program::Executable& executable, int64_t max_rows, int32_t sequences, int64_t context,
                uint64_t seed);

  /// Computes the first `depth` tokens of the first `sequences` sequences, where that was not done before.
  /// `progress` hears how many tokens are there, of all.
  void fill(int64_t depth, int32_t sequences, const std::function<void(int64_t, int64_t)>& progress = {});
  /// One step over `rows` tokens of the first sequence from `position` on. Returns its nanoseconds.
  int64_t prompt_step(int64_t position, int64_t rows) { return prompt_step(0, position, rows); }
  /// One step over one token of each of the first `sequences` sequences. Returns its nanoseconds.
  int64_t decode_step(int64_t position, int32_t sequences);
  /// So many of these, one position further each, as answers run them: where the executable runs ahead each
  /// begins while the one before it runs. Returns their nanoseconds.
  int64_t decode_steps(int64_t position, int32_t sequences, int64_t steps);
  /// All of a prompt in as few steps as max_rows allows. Returns their nanoseconds.
  int64_t prompt(int64_t position, int64_t tokens);

  /// Set: every step is timed into it.
  void time_into(program::StepTimes* times) { times_ = times; }
  /// Set: it reads after every step but those that fill a context.
  void read_between(ReadTurns* turns) { turns_ = turns; }
  int64_t max_rows() const { return max_rows_; }

  /// Pages that an executable needs for this.
  static int64_t pages(int32_t sequences, int64_t context) {
    return sequences * engine::KvPool::pages_for(context);
  }
  /// The same of slots for states. Steps go back to positions whose states are lost: what they take is
  /// measured, and not what they compute.
  static int64_t state_slots(int32_t sequences) { return 2 * int64_t{sequences}; }

 private:
  int32_t token(int32_t sequence, int64_t position) const;
  int64_t prompt_step(int32_t sequence, int64_t position, int64_t rows);
  void add_tokens(int64_t position, int32_t sequences);
  int64_t step();
  void computed(int32_t sequence, int64_t position, int64_t rows);

  program::Executable& executable_;
  int64_t max_rows_;
  uint64_t seed_;
  uint64_t vocabulary_;
  engine::KvPool pool_;
  engine::Batch batch_, ahead_;  // ahead_: of the step that is in flight
  std::vector<int64_t> filled_;  // tokens of each sequence that the cache holds
  program::StepTimes* times_ = nullptr;
  ReadTurns* turns_ = nullptr;
};

}  // namespace sluice::cli
