// Which ops must wait for which: those whose operands overlap in memory.
#pragma once

#include <vector>

#include "backend/vulkan/kernels.h"

namespace sluice::backend::vulkan {

/// Knows what was read and written since the last barrier.
class Hazards {
 public:
  explicit Hazards(const Layout& layout) : layout_(layout) {}
  /// Whether the op needs a barrier before it; it counts as started then. uses_scratch: beside its operands.
  bool before(const program::Op& op, bool uses_scratch);

 private:
  /// Bytes of the arena, or of a cache.
  struct Access {
    int64_t begin = 0, end = 0;
    program::TensorId storage = program::kNoTensor;
    int64_t row = 0, first_column = 0, last_column = 0;  ///< of a view in one row of its storage; row 0: none
    int64_t layer = -1;
    bool written = false;

    bool conflicts(const Access& other) const;
  };
  Access access(program::TensorId id, bool written, int64_t layer) const;

  const Layout& layout_;
  std::vector<Access> since_;
};

}  // namespace sluice::backend::vulkan
