// The slots of experts (program/offload.h) of one executable: what its steps deal out, and what is copied
// between them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/places/expert_cache.h"
#include "backend/places/expert_copies.h"
#include "program/backend.h"
#include "program/expert_slots.h"
#include "program/offload.h"

namespace sluice::backend::places {

/// Experts that begin to be copied behind a step at most: with more, what they take of memory would be felt.
inline constexpr size_t kCopiesAStep = 4;

class ExpertSlots {
 public:
  /// program: of both places; weights: of the file. first: what has the slots, and is filled here. fills:
  /// false: the slots are another one's, or results may not depend on them; all is the second place's.
  ExpertSlots(std::vector<program::SlottedExperts> slotted, const program::Source& source,
              program::Executable& first, int64_t max_rows, bool fills);

  const std::vector<program::SlottedExperts>& slotted() const { return slotted_; }
  /// Deals a layer's selection out: what was read at the first place becomes what is written to the second,
  /// and the first gets its share. Whether the second has any.
  bool deal(size_t layer, std::span<const program::Executable::Peek> read);
  /// What another executable streams, it takes from the slots where they have it.
  void lend_to(program::Executable& streamed);
  /// Counts what a step selected that another executable ran.
  void count_step(program::Executable& ran, int64_t rows);
  /// Behind a step, of which nothing runs any more: copies that have arrived are used from now on, others
  /// begin.
  void end_step();
  program::ExpertUse use() const;

 private:
  std::span<const std::byte> bytes_of(program::TensorId experts, int32_t expert) const;
  void copy(const Swap& swap);

  std::vector<program::SlottedExperts> slotted_;
  const program::Program& program_;
  program::WeightBytes weights_;
  program::Executable& first_;
  program::SlotFiller* filler_;
  ExpertCache cache_;
  std::vector<float> slot_ids_, slot_weights_, counted_;
  std::atomic<int64_t> selected_ = 0, hits_ = 0, brought_ = 0;
  std::optional<ExpertCopies> copies_;  // last: its thread uses the others
};

}  // namespace sluice::backend::places
