// Weights that are parts of a file's tensors become tensors of their own: for devices that pack whole tensors
// into memory of theirs, and are to have no more of them than they use. Knows bytes and types; no device.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "program/program.h"
#include "program/weight_set.h"

namespace sluice::program {

/// Copies of parts, in memory of this process.
class PartBytes {
 public:
  PartBytes() = default;
  PartBytes(const PartBytes&) = delete;
  PartBytes& operator=(const PartBytes&) = delete;
  ~PartBytes();
  /// So many bytes, whose place is nobody else's for as long as this lives.
  std::span<std::byte> add(size_t bytes);
  /// Gives the memory back, and keeps the places: nobody reads the bytes any more.
  void release();

 private:
  std::vector<std::span<std::byte>> pieces_;
};

struct OwnWeights {
  Program program;
  WeightBytes weights;                ///< empty where no files were given
  std::shared_ptr<PartBytes> copies;  ///< what some of them point to
};

/// The same list over weights that are no views. Of a whole tensor the bytes are the file's; of a part they
/// are copied, row by row. `files`: bytes of the program's weights by TensorId, as WeightBytes are; empty:
/// the program alone is wanted.
OwnWeights own_weights(const Program& program, const WeightBytes& files);

}  // namespace sluice::program
