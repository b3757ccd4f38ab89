// What a kernel is on this backend, and the small pieces that kernels share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "backend/cpu/isa.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/rounded_values.h"
#include "backend/cpu/simd/tiles.h"
#include "backend/cpu/stealing.h"
#include "base/threads.h"
#include "program/op.h"
#include "program/step.h"

namespace sluice::backend::cpu {

/// Everything a kernel gets besides its op: the worker's place in the team and the step's data.
struct Context {
  const Memory& memory;
  const program::StepInput& input;
  int worker, workers;
  Isa isa;
  Team& team;
  Steals steals = {};

  /// Waits for all workers. A kernel that meets must do so as often on every worker.
  void meet() const {
    if (workers > 1) team.barrier();
  }
  float* scratch() const { return memory.scratch(worker); }
  /// A weight in panels; two that are read at the same time take different slots.
  Matrix matrix(program::TensorId id, int slot = 0) const { return memory.matrix(id, worker, slot); }
  Stealing stealing() const { return {steals, worker, workers}; }
  Slice slice(int64_t count, int64_t group = 1) const { return slice_of(count, worker, workers, group); }
  /// This worker's rows in an op of Share::Rows. With tiles they are whole groups where there is more than
  /// one: rows of bf16 go by groups (rounded_values.h).
  Slice row_slice(int64_t count) const {
    return slice(count, count >= kLeastRounded && tile_kernels(isa) != nullptr ? kGroupRows : 1);
  }
  /// Rows of an activation at this step.
  int64_t rows(const program::Program& p, program::TensorId id) const {
    return program::Program::rows(p[id], input.rows(), input.outputs());
  }
  /// Where this step keeps an activation as rows of bf16; null: it has them as they are.
  uint16_t* rounded(const program::Program& p, program::TensorId id) const {
    return memory.rounded(id, rows(p, id));
  }
};

/// How workers share an op. Rows: worker w takes row_slice(step rows), the same for every such op, so
/// that a chain of them needs no barrier. Other: any other way. Together: they read each other's scratch, so
/// that a barrier stands after the op whatever comes.
enum class Share : uint8_t { Rows, Other, Together };

/// A kernel: every worker of the team calls run for every op, and does its own part.
struct Kernel {
  const char* name;
  Share share;
  void (*run)(const program::Program&, const program::Op&, const Context&);
  /// Floats of scratch that a worker needs at most.
  int64_t (*scratch_floats)(const program::Program&, const program::Op&, const program::CompileOptions&);
  /// Whether the weights that it multiplies are read as packed panels (packed_weights.h) and not in the
  /// file's order.
  bool panels = false;
  /// Rows of one sequence from which on it makes keys and values once for all of them; 0, or null: never.
  int64_t (*stretches_from)(const program::Program&, const program::Op&, Isa) = nullptr;
  // Where the kernel is defined: the compiler fills these in where a Kernel is.
  const char* file = __builtin_FILE();
  int line = __builtin_LINE();
};

inline int64_t no_scratch(const program::Program&, const program::Op&, const program::CompileOptions&) {
  return 0;
}

/// The kernel for an op, or null when there is none: a pure function of the op and its types (bind.cc).
const Kernel* bind(const program::Program& program, const program::Op& op);

/// Whether the op's kernel reads this operand as packed panels: a weight that it multiplies.
bool reads_panels(const program::Program& program, const program::Op& op, program::TensorId id);

/// Whether all that read a cache would round its numbers to bfloat16 at every reading, and can take them as
/// they are when they have been rounded once (ops/mla_attend.cc).
bool attends_in_bf16(const program::Program& program, program::TensorId cache, Isa isa);

/// x . w, as eight sums: a compiler makes vectors of them.
inline float dot(const float* x, const float* w, int64_t count) {
  constexpr int kLanes = 8;
  float sums[kLanes] = {}, sum = 0;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) sums[k] += x[i + k] * w[i + k];
  }
  for (const float part : sums) sum += part;
  for (; i < count; ++i) sum += x[i] * w[i];
  return sum;
}

}  // namespace sluice::backend::cpu
