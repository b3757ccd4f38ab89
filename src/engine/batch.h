// The rows of one step, put together row by row. All memory is taken by the constructor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/step.h"

namespace sluice::engine {

class Batch {
 public:
  Batch(int64_t max_rows, int32_t max_sequences, int32_t pages_per_sequence);

  int64_t rows() const { return static_cast<int64_t>(tokens_.size()); }
  void clear();
  /// The pages of a sequence, from its first position on.
  void set_pages(int32_t sequence, std::span<const int32_t> pages);
  /// Where the state of a sequence lies; until it is said, sequence s has slots 2s and 2s + 1.
  void set_state(int32_t sequence, program::StateSlots slots);
  /// Adds a row; its sequence's pages must cover the position.
  void add(int32_t token, int32_t position, int32_t sequence, bool wants_logits);
  /// Adds a row that gives something.
  void add(int32_t token, int32_t position, int32_t sequence, const program::Want& want);
  /// Views of this batch, valid until it changes.
  program::StepInput input() const;
  program::Step step() const { return {.input = input(), .wants = wants_}; }

 private:
  int32_t pages_per_sequence_;
  std::vector<int32_t> tokens_, positions_, sequences_, slots_, page_tables_, output_rows_;
  std::vector<program::Want> wants_;
  std::vector<program::StateSlots> states_;
};

}  // namespace sluice::engine
