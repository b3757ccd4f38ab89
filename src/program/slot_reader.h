// Streamed weights (Tensor::streamed) of which a device has some matrices already, in slots (expert_slots.h).
// Who runs the places asks for it by a dynamic_cast.
#pragma once

#include <cstdint>
#include <span>

#include "program/expert_slots.h"

namespace sluice::program {

/// Of an executable with streamed weights.
class SlotReader {
 public:
  virtual ~SlotReader() = default;
  /// From the next step on, matrix i of `weight` is matrix slot_of[i] of `slots`, a weight of the filler's;
  /// where that is negative it comes from the file as before. slot_of is read while steps run, and changes
  /// between them alone, as do the slots that it names. A weight that is part of another tensor comes from
  /// the file whatever is said here.
  virtual void take_from(TensorId weight, SlotFiller& filler, TensorId slots,
                         std::span<const int32_t> slot_of) = 0;
};

}  // namespace sluice::program
