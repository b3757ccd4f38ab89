// What varies from step to step, and nothing else: a Program and its memory never change.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <span>

namespace sluice::program {

/// In place of a token: what was drawn for output `output` of the step before.
constexpr int32_t following(int32_t output) { return -1 - output; }

/// How a token is drawn from a row's likeliest ones, for following(): of the top_k likeliest, those that
/// together reach probability top_p, those at least min_p times as likely as the likeliest; then by the
/// softmax of logits over temperature, the first whose sum of probabilities exceeds `uniform`. Temperature 0:
/// the likeliest.
struct Draw {
  int32_t top_k = 1;  ///< 1 to kMaxTopK
  float top_p = 1, min_p = 0, temperature = 0;
  float uniform = 0;  ///< in [0, 1)
};

/// How a step stands to the one that paused (Step::pause). Whole: there is none, or it is forgotten.
/// Resumed: it goes on where it was; all of its input is as it was, but for when it is to pause. Aside: a
/// small step that runs while the other stays paused.
enum class Turn : uint8_t { Whole, Resumed, Aside };

/// Where the state of a sequence lies: every program's states have slots of the same numbers. A step reads
/// the one before its rows of the sequence from slot `from` (no rows are before position 0: then there is
/// none), and leaves the one behind them in slot `to`, another one. So what it read is still there when the
/// step is given up, or when another sequence goes on from it, too.
struct StateSlots {
  int32_t from = 0, to = 1;
};

/// One step's rows. Row r holds token tokens[r] at positions[r] of sequence sequences[r]; it writes its cache
/// row to slots[r] = page * kPageRows + row in page, and attends to positions 0..positions[r] of its
/// sequence. A step that is submitted before the one before it was collected may have tokens that are not
/// known yet: following(i) is what is drawn for that step's output i.
struct StepInput {
  std::span<const int32_t> tokens;     // [rows]
  std::span<const int32_t> positions;  // [rows]
  std::span<const int32_t> sequences;  // [rows], an index into the page tables
  std::span<const int32_t> slots;      // [rows]
  std::span<const int32_t>
      page_tables;  // [sequences][pages_per_sequence], physical page of each logical page
  int32_t pages_per_sequence = 0;
  std::span<const int32_t> output_rows;  // [outputs], ascending rows of this step that give something
  /// [sequences], of a program that has states; of such a one, rows of a sequence stand together.
  std::span<const StateSlots> states = {};

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
  int64_t outputs() const { return static_cast<int64_t>(output_rows.size()); }

  /// The rows [first, last) of the step as one of their own, without outputs.
  StepInput part(int64_t first, int64_t last) const;
  /// The end of the rows that row `first` and those behind it have of one sequence.
  int64_t end_of_sequence(int64_t first) const;
  /// The slot where the cache row of `position` of row r's sequence lies.
  int64_t slot_of(int64_t row, int64_t position) const;
};

/// What is wanted of an output row.
struct Want {
  bool logits = true;
  bool top = false;     ///< its likeliest tokens
  bool drawn = false;   ///< a token, drawn by `draw`
  bool hidden = false;  ///< what the output matrix multiplies (Facts::hidden)
  /// So many outputs behind this one are rows of the same sequence, whose tokens were drafted: how many of
  /// them are what is drawn for the rows before them is wanted, too.
  int32_t drafts = 0;
  Draw draw = {};
};

/// A step: its rows, and what is wanted of them.
struct Step {
  StepInput input;
  std::span<const Want> wants = {};  ///< [outputs]; empty: the logits of all
  bool timed = false;                ///< Executable::fetch_times will be asked when its ops ran
  Turn turn = Turn::Whole;
  // Requests, which an executable may ignore.
  /// Once it is true (anybody may set it), nobody wants the step any more: it may end between two ops, and
  /// its result says so. Its rows can then be computed again as though they never had been.
  const std::atomic<bool>* stop = nullptr;
  /// Once it is true, or the clock (base/clock.h) has passed pause_ns, the step may pause behind one of its
  /// ops, and its result says so.
  const std::atomic<bool>* pause = nullptr;
  int64_t pause_ns = std::numeric_limits<int64_t>::max();

  Want want(int64_t output) const { return wants.empty() ? Want{} : wants[static_cast<size_t>(output)]; }
};

/// A token and its logit.
struct Likely {
  float logit = 0;
  int32_t token = -1;
};
/// How many of a row's likeliest tokens a step can give.
inline constexpr int64_t kMaxTopK = 64;

/// What an output row gives: what was wanted of it, or else its logits, from which all but the hidden state
/// follows (program/derived.h).
struct RowResult {
  std::span<const float> logits = {};  ///< [vocabulary]
  /// [kMaxTopK]: the highest logits first, of equal ones the lower token; token -1 where no more are above
  /// minus infinity (NaN is not).
  std::span<const Likely> top = {};
  std::span<const float> hidden = {};
  int32_t drawn = -1;  ///< -1: not given; rounding may make it another than an exact draw
  /// Of Want::drafts, how many are right, one behind the other; -1: not given. The token behind them is that
  /// output's: outputs[i + accepted].drawn.
  int32_t accepted = -1;
};

/// What a step gave. Views live until the executable's next submit() or collect().
struct StepResult {
  std::span<const RowResult> outputs = {};
  bool stopped = false;  ///< Step::stop ended it early: it gives nothing
  bool paused = false;   ///< it has not ended: nothing yet
};

/// The sizes of a step, for costs: counted when a step ran, assumed in forecasts.
struct StepShape {
  double rows = 1;
  double outputs = 1;
  double context = 1;     ///< cache rows that a row attends to, its own included, on average
  double cache_rows = 1;  ///< distinct cache rows that the step reads: a sequence's rows share them
  double sequences = 1;   ///< that it has rows of: each has one state

  double selected = 0;  ///< distinct experts that the rows selected together in a layer; 0: not counted

  /// Distinct experts that the rows select together: those counted, or a forecast as though each selection
  /// were uniform.
  double distinct_experts(double experts, double used) const;
};

}  // namespace sluice::program
