// The weights of a model as a backend's kernels read them: loaded once, shared by all that is compiled over
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "program/program.h"

namespace sluice::program {

/// Bytes of each weight, by TensorId of the tensor that stores it; empty for everything else. The bytes
/// belong to the mapped file and outlive every executable.
using WeightBytes = std::vector<std::span<const std::byte>>;

/// A program and the bytes of its weights.
struct Source {
  const Program& program;
  const WeightBytes& weights;
};

/// Told while weights are loaded: bytes that are done, and those in all. One call at a time, from any thread.
using Progress = std::function<void(int64_t done, int64_t total)>;

/// What Backend::load() made of the weights of some programs. Programs know a weight by a TensorId each of
/// their own; here it is known by where its bytes lie in the file.
class WeightSet {
 public:
  virtual ~WeightSet() = default;
  /// Memory that it takes, the device's or this process's. What stays in the mapped file is not counted.
  virtual int64_t bytes() const = 0;
};

/// Weights that are read where they lie in the file.
class MappedWeights : public WeightSet {
 public:
  int64_t bytes() const override { return 0; }
};

}  // namespace sluice::program
