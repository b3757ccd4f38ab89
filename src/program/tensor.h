// Tensors of a Program: names, types, shapes and strides. No memory: where a tensor lies is a backend's
// business.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "quant/cache_row.h"
#include "quant/types.h"

namespace sluice::program {

/// Index into Program::tensors.
using TensorId = int32_t;
inline constexpr TensorId kNoTensor = -1;

/// Indices [first, last).
struct Range {
  int64_t first = 0, last = 0;
  int64_t count() const { return last - first; }
};

/// Symbolic first dimension of an activation: how many rows there are is known at each step.
inline constexpr int64_t kStepRows = -1;    ///< one row a token of the step
inline constexpr int64_t kOutputRows = -2;  ///< one row a token whose logits were asked for

enum class Kind : uint8_t {
  Weight,      ///< [matrices, rows, columns], bytes of a file
  Activation,  ///< [step or output rows, heads, columns], float32 or int32, written once a step
  Cache,       ///< [layers, kPageRows, columns] a page; the pages are the step's business
  State,       ///< [layers, rows, columns] a slot: what a sequence keeps however long it is; see StateSlots
};

/// Three dimensions, the last contiguous. A view names its base and where it begins in it. A view of a weight
/// is some of its matrices, rows and columns: rows lie stride[1] elements apart, however many columns it has.
struct Tensor {
  std::string name;
  Kind kind = Kind::Activation;
  quant::Type type = quant::Type::F32;
  std::array<int64_t, 3> shape = {1, 1, 1};
  std::array<int64_t, 2> stride = {1, 1};  ///< elements from one shape[0] (shape[1]) index to the next
  TensorId base = kNoTensor;               ///< set for a view; a view of a view names the first base
  int64_t offset = 0;                      ///< elements from the base's beginning
  int64_t exact = 0;                       ///< of a cache of eight bits: the last columns, which have sixteen
  int64_t most_rows = 0;  ///< of one that an op fills and reads part by part: rows of a step at most; 0: all
  int32_t place = 0;      ///< the device that has it; of a file's weight, views may lie at others (places.h)
  /// Of a file's weight: a device with memory of its own has no room for it. It comes from the host's memory,
  /// where the file stays, when an op needs it, into room that others take in turns.
  bool streamed = false;

  int64_t heads() const { return shape[1]; }
  int64_t columns() const { return shape[2]; }
  /// Of a cache: how its rows hold numbers.
  quant::CacheRow cache_row() const { return {type, columns(), exact}; }
};

/// Rows of the cache that are allocated, shared and freed together, for all layers.
inline constexpr int kPageRows = 64;

}  // namespace sluice::program
