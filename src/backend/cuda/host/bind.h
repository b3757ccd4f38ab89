// Op, types and sizes -> kernel. Pure, so that it can be printed; nothing is chosen during a step but which
// of the captured graphs runs.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "backend/cuda/host/step_plan.h"
#include "program/backend.h"

namespace sluice::backend::cuda {

class Collectives;

/// The kernel for steps of these sizes; null: there is none, and the op's expansion runs in its place.
const Kernel* bind(const program::Program& program, const program::Op& op, const Sizes& sizes);

/// How many products of operands rounded to halves stand behind each other in this op where it runs on tensor
/// cores (steps of many rows); 0: it never does.
int products_of_halves(const program::Program& program, const program::Op& op, const Sizes& device);

/// Positions of a sequence at most.
int64_t longest_context(const program::CompileOptions& options);

/// The sizes that graphs are captured for: every combination of these. Rows of a batch-invariant executable
/// have one.
std::vector<int64_t> row_buckets(const program::CompileOptions& options);
std::vector<int64_t> context_buckets(int64_t longest);
/// The smallest bucket that holds `value`.
int64_t bucket_of(const std::vector<int64_t>& buckets, int64_t value);

/// An op, and what runs where no kernel serves: its expansion. A leaf has a kernel for all sizes, or goes
/// across places and has none.
struct Node {
  program::Op op;
  std::vector<Node> expansion;
};

/// A Program as this backend may run it: `program` holds the ops that some sizes have kernels for, and the
/// tensors of all expansions; `leaves` the same, expanded all the way.
struct Bound {
  program::Program program, leaves;
  std::vector<Node> nodes;  ///< one an op of `program`
  int longest_expansion = 0;
  Sizes device;                                           ///< what it was bound for
  std::map<std::pair<int64_t, int64_t>, StepPlan> plans;  ///< by rows and longest context
  PlanMemory memory;
  /// What runs ops across places, as launches among others; null: whoever runs the step part by part.
  const Collectives* collectives = nullptr;

  Bound() = default;
  Bound(const Bound&) = delete;  // plans point to ops of nodes
  Bound& operator=(const Bound&) = delete;
  Bound(Bound&&) = default;
  Bound& operator=(Bound&&) = default;
  /// What is launched by itself (launched_parts); all of it where nothing is between.
  std::vector<program::Range> parts() const;
  /// Of a bucket.
  const StepPlan& plan(int64_t rows, int64_t bucket_longest) const {
    return plans.at({rows, bucket_longest});
  }
};

/// Throws Error "the backend cuda lacks OP" where a primitive has no kernel.
Bound bind_all(const program::Program& program, const program::CompileOptions& options, const Sizes& device,
               const Collectives* collectives = nullptr);

}  // namespace sluice::backend::cuda
