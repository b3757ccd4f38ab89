// Copies of experts that lie at another place (offload.h): what an executable with slots for them can do
// besides. Who runs the places asks for it by a dynamic_cast, since few executables have any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "program/tensor.h"

namespace sluice::program {

/// Of an executable whose weights may be filled again while it runs.
class SlotFiller {
 public:
  virtual ~SlotFiller() = default;
  /// Puts a whole matrix, as the file has it, in place of matrix `slot` of a weight, and returns when it is
  /// there. Maybe called by another thread while steps run: by one at a time, and no step that runs
  /// meanwhile depends on the slot. Throws Error where it fails; the slot then holds anything.
  virtual void fill(TensorId weight, int64_t slot, std::span<const std::byte> matrix) = 0;
};

/// How often experts were selected of layers that lie at another place, and what their copies were good for.
struct ExpertUse {
  int64_t selected = 0;  ///< a row's experts, one by one
  int64_t hits = 0;      ///< of them those of which the first place had a copy
  int64_t brought = 0;   ///< experts that were copied while steps ran
  int64_t slots = 0;     ///< copies that there is room for
  int64_t layers = 0;    ///< that have slots; 0: there are no copies

  double hit_rate() const {
    return selected > 0 ? static_cast<double>(hits) / static_cast<double>(selected) : 0;
  }
};

/// Of an executable with such copies.
class ExpertCounts {
 public:
  virtual ~ExpertCounts() = default;
  /// Since it was compiled. May be called at any time, by any thread.
  virtual ExpertUse expert_use() const = 0;
};

}  // namespace sluice::program
